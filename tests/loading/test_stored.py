"""The dtype and the sizes of a checkpoint, from its config.json and the headers of its files."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from minise.loading.config_json import config_from_dict
from minise.loading.quantize import pack
from minise.loading.stored import read_headers
from tests.loading.test_checkpoint import WEIGHTS
from tests.loading.test_quantize import store
from tests.support.tiny import FAMILIES, write_checkpoint


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64"])
def test_the_dtype_is_read_from_the_headers_of_the_files(tmp_path: Path, dtype: str) -> None:
    """Whatever config.json says."""
    raw = {**FAMILIES["llama"], "torch_dtype": "float16"}
    write_checkpoint(tmp_path, raw, dtype=getattr(torch, dtype))
    stored = read_headers(config_from_dict(raw), [tmp_path / WEIGHTS])
    assert stored.dtype == getattr(torch, dtype)
    written = load_file(tmp_path / WEIGHTS)
    assert stored.bytes(stored.dtype) == sum(tensor.nbytes for tensor in written.values())
    assert stored.values == sum(tensor.numel() for tensor in written.values())


def test_a_checkpoint_stored_in_4_bits_has_the_dtype_of_its_other_tensors(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path, FAMILIES["llama"], dtype=torch.bfloat16)
    plain = read_headers(config_from_dict(FAMILIES["llama"]), [folder / WEIGHTS])
    store(folder, "nf4")
    stored = read_headers(config_from_dict(FAMILIES["llama"]), [folder / WEIGHTS])
    assert stored.dtype == torch.bfloat16
    assert stored.packed == plain.in_4_bits("nf4")
    assert len(stored.packed) == 21


def test_weights_in_4_bits_take_half_a_byte_and_their_scales(tmp_path: Path) -> None:
    """64 values: 32 bytes of codes, 4 of their scale. So much is planned for."""
    folder = write_checkpoint(tmp_path, FAMILIES["llama"])
    by_config = read_headers(config_from_dict(FAMILIES["llama"]), [folder / WEIGHTS])
    packed = by_config.in_4_bits("nf4")
    values = sum(by_config.shapes[name][0] * by_config.shapes[name][1] for name in packed)
    rest = (by_config.values - values) * 4
    assert by_config.bytes(torch.float32, packed) == rest + values * (32 + 4) / 64
    weight = torch.randn(64, 64)
    held = pack(weight, "nf4").tensors.values()
    table = 16 * 4  # not for each matrix anew in the plan
    assert sum(part.nbytes for part in held) - table == weight.numel() * (32 + 4) / 64
