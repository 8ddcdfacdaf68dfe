"""The reference library's promises about masks, held by it and by our decoder alike."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

pytest.importorskip("transformers", reason="the reference library, extra [parity], is missing")

from minise import Decoder
from minise.layout import causal_mask
from minise.loading.checkpoint import read_weights
from minise.loading.config_json import read_config
from minise.loading.stored import read_headers
from tests.support.masks import DOCUMENTS, MASKS, POSITIONS, T, blocks, restarts
from tests.support.reference import (
    CASES,
    float64_islands,
    reference_logits,
    reference_model,
    write_checkpoint,
)

NAMES = ["llama-grouped", "mistral-window", "qwen2-tied-mixed-windows", "qwen3-tied-mixed-windows"]
TOKENS = torch.randint(96, (T,), generator=torch.Generator().manual_seed(0))
TOLERANCE = 1e-9


@pytest.fixture(scope="module", params=NAMES)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(CASES[request.param], tmp_path_factory.mktemp("masks"))


@pytest.fixture(scope="module")
def decoder(folder: Path) -> Decoder:
    config, weights = read_config(folder / "config.json"), [folder / "model.safetensors"]
    return read_weights(read_headers(config, weights), torch.float64, torch.device("cpu"))


@pytest.mark.parametrize("order", POSITIONS)
@pytest.mark.parametrize("name", MASKS)
def test_any_4d_mask(folder: Path, decoder: Decoder, name: str, order: str) -> None:
    mask, positions = MASKS[name], POSITIONS[order]
    with float64_islands():
        expected = reference_logits(folder, TOKENS, positions, mask, torch.float64)
    ours = decoder.logits(decoder(TOKENS, positions, mask))
    assert (ours - expected).abs().max() <= TOLERANCE


def test_documents_that_the_library_finds_by_their_positions(
    folder: Path, decoder: Decoder
) -> None:
    """Where positions start over and no mask is given, it takes a row for packed documents."""
    positions = restarts(DOCUMENTS)
    with float64_islands():
        expected = reference_logits(folder, TOKENS, positions, None, torch.float64)
    ours = decoder.logits(decoder(TOKENS, positions, blocks(DOCUMENTS)))
    assert (ours - expected).abs().max() <= TOLERANCE


@torch.no_grad()
def test_a_batch_that_the_library_pads_on_the_left(folder: Path, decoder: Decoder) -> None:
    """With its 2-D mask, 0 = padding. Ours says the same in 4-D: nobody sees padding."""
    lengths = (20, 64, T)
    padding = torch.stack([torch.arange(T) < T - length for length in lengths])
    tokens = TOKENS.expand(3, T).masked_fill(padding, 0)
    positions = (~padding).cumsum(dim=1).sub(1).clamp(min=0)
    with float64_islands():
        expected = reference_model(folder, torch.float64)(
            input_ids=tokens, position_ids=positions, attention_mask=(~padding).long()
        ).logits
    mask = causal_mask(T) & ~padding[:, None] | torch.eye(T, dtype=torch.bool)
    ours = decoder.logits(decoder(tokens, positions, mask))
    assert (ours - expected)[~padding].abs().max() <= TOLERANCE
