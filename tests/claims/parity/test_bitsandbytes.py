"""Our 4-bit weights against bitsandbytes, on a CPU.

Two of its ways are avoided. Its layer's own `forward` may compute in bfloat16 on a CPU that can, so
the reference is `dequantize_4bit`. On a CPU that takes some matrices whose rows are no multiple of
a block for what they are not (in a random one of 48 x 32 most values are wrong), so every matrix is
given to it as one long row.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

pytest.importorskip("transformers", reason="the reference library, extra [parity], is missing")
pytest.importorskip("accelerate", reason="part of the 4-bit reference, extra [parity], is missing")
pytest.importorskip("bitsandbytes", reason="the 4-bit reference, extra [parity], is missing")

import transformers
from bitsandbytes import functional as library

from minise.loading.checkpoint import read_weights
from minise.loading.config_json import read_config
from minise.loading.quantize import (
    TABLES,
    Packed,
    _dynamic_table,
    format_of,
    matrix_of,
    pack,
    read_stored,
)
from minise.loading.stored import read_headers
from tests.support.reference import CASES, reference_logits, runs, write_checkpoint

FORMATS = [("nf4", False), ("fp4", False), ("nf4", True), ("fp4", True)]
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
SHAPES = [(64, 64), (48, 32), (36, 24), (7, 130), (2, 31), (3, 5), (1, 1), (512, 192), (96, 1024)]
SHAPES += [(1001, 333)]  # more than one piece, the last one short


def draw(shape: tuple[int, int], dtype: torch.dtype) -> Tensor:
    return (0.05 * torch.randn(shape, generator=torch.Generator().manual_seed(0))).to(dtype)


def unpacked(codes: Tensor, state: Any, dtype: torch.dtype) -> Tensor:
    """What the library makes of its own tensors."""
    flat = copy.copy(state)
    flat.dtype, flat.shape = dtype, torch.Size((1, state.shape.numel()))
    with torch.compiler.set_stance("force_eager"):  # where it would compile for each shape
        return library.dequantize_4bit(codes, flat).view(state.shape)


def stored(codes: Tensor, state: Any) -> dict[str, Tensor]:
    return {"": codes, **state.as_dict(packed=True)}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("kind", TABLES)
def test_we_pack_as_it_does(kind: str, shape: tuple[int, int], dtype: torch.dtype) -> None:
    """Weights in 16 bits have many ties between two entries of fp4."""
    weight = draw(shape, dtype)
    codes, state = library.quantize_4bit(weight, quant_type=kind)
    ours = pack(weight, kind)
    assert torch.equal(ours.scales(), state.absmax)
    for wanted in DTYPES:
        assert torch.equal(ours.unpack(wanted), unpacked(codes, state, wanted))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("kind", TABLES)
def test_double_quantization(kind: str, shape: tuple[int, int]) -> None:
    """The same but for some of the 8-bit codes of absmax: on a CPU the library looks them up in a
    coarser grid, so that a few are not the nearest. Ours are."""
    weight = draw(shape, torch.bfloat16)
    codes, state = library.quantize_4bit(weight, quant_type=kind, compress_statistics=True)
    ours, theirs = pack(weight, f"{kind}-double"), read_stored(stored(codes, state), shape, "")
    for name in ("nested_quant_map", "nested_absmax", "nested_offset"):
        assert torch.equal(ours.tensors[name], theirs.tensors[name])
    exact = pack(weight, kind).scales()
    far, near = ((packed.scales() - exact).abs() for packed in (theirs, ours))
    assert (near <= far + 1e-9).all()
    same = ours.scales() == theirs.scales()
    assert same.float().mean() > 0.99
    assert torch.equal(blocks(ours)[same], blocks(theirs)[same])


def blocks(packed: Packed) -> Tensor:
    """The unpacked values block by block."""
    values = packed.unpack(torch.float32).view(-1)
    return torch.nn.functional.pad(values, (0, -len(values) % 64)).view(-1, 64)


@pytest.mark.parametrize("storage", [torch.uint8, torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("shape", [(64, 64), (48, 32), (512, 192)], ids=str)
@pytest.mark.parametrize(("kind", "double"), FORMATS)
def test_what_it_stored_is_unpacked_to_the_same_bits(
    kind: str, double: bool, shape: tuple[int, int], storage: torch.dtype
) -> None:
    weight = draw(shape, torch.float32)
    codes, state = library.quantize_4bit(
        weight, quant_type=kind, compress_statistics=double, quant_storage=storage
    )
    ours = read_stored(stored(codes, state), shape, "")
    for dtype in DTYPES:
        assert torch.equal(ours.unpack(dtype), unpacked(codes, state, dtype))


@pytest.mark.parametrize("block", [32, 128, 4096])
def test_other_blocks(block: int) -> None:
    codes, state = library.quantize_4bit(
        draw((96, 1024), torch.float32), blocksize=block, quant_type="nf4"
    )
    ours = read_stored(stored(codes, state), (96, 1024), "")
    assert torch.equal(ours.unpack(torch.float32), unpacked(codes, state, torch.float32))


def test_the_tables() -> None:
    for kind, table in TABLES.items():
        assert torch.equal(table, library.get_4bit_type(kind, device="cpu"))
    assert torch.equal(_dynamic_table(), library.create_dynamic_map())


FAMILIES = ("llama-grouped", "mistral-window", "qwen2-tied-mixed-windows", "qwen3-untied")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("storage", [torch.uint8, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("kind", "double"), FORMATS)
@pytest.mark.parametrize("case", FAMILIES)
def test_a_checkpoint_that_it_stored(
    tmp_path: Path, case: str, kind: str, double: bool, storage: torch.dtype, dtype: torch.dtype
) -> None:
    """Loaded as 4 bits, it is to the last bit the plain checkpoint of what `dequantize_4bit` makes
    of its tensors. The reference library's logits are that plain checkpoint's."""
    plain = write_checkpoint(CASES[case], tmp_path / "plain")
    model = transformers.AutoModelForCausalLM.from_pretrained(
        plain,
        quantization_config=transformers.BitsAndBytesConfig(
            load_in_4bit=True,
            bnb_4bit_quant_type=kind,
            bnb_4bit_use_double_quant=double,
            bnb_4bit_quant_storage=storage,
        ),
        dtype=dtype,
        local_files_only=True,
    )
    model.save_pretrained(tmp_path / "stored")
    unpack_checkpoint(tmp_path / "stored", plain)
    ours, expected = (
        read_weights(
            read_headers(read_config(folder / "config.json"), [folder / "model.safetensors"]),
            torch.float32,
            torch.device("cpu"),
        )
        for folder in (tmp_path / "stored", plain)
    )
    assert format_of(ours) == kind + ("-double" if double else "")
    for tokens, positions, mask in runs().values():
        logits = ours.logits(ours(tokens, positions, mask))
        assert torch.equal(logits, expected.logits(expected(tokens, positions, mask)))
        theirs = reference_logits(plain, tokens, positions, mask, torch.float32)
        assert (logits - theirs).abs().max() <= 1e-4


def unpack_checkpoint(folder: Path, plain: Path) -> None:
    """Put into `plain` the weights of a stored checkpoint, unpacked by the library to float32."""
    tensors = load_file(folder / "model.safetensors")
    state = {name: x for name, x in tensors.items() if not matrix_of(name)[1]}
    for name in filter(lambda name: matrix_of(name)[0], state):
        parts = {part: x for part, x in tensors.items() if part.startswith(f"{name}.")}
        quant_state = library.QuantState.from_dict(parts, device=torch.device("cpu"))
        state[name] = unpacked(state[name], quant_state, torch.float32)
    save_file({name: x.contiguous() for name, x in state.items()}, plain / "model.safetensors")
