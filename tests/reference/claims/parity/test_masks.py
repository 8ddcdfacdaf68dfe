"""The reference library's promises about masks, held by it and by our decoder alike."""

from pathlib import Path

import pytest
import torch

pytest.importorskip("transformers", reason="the reference library, extra [parity], is missing")

from minise import Decoder, load
from minise.layout import causal_mask
from tests.reference.support.masks import MASKS, POSITIONS, T
from tests.reference.support.reference import (
    CASES,
    float64_islands,
    reference_logits,
    reference_model,
    write_checkpoint,
)

NAMES = ["llama-grouped", "mistral-window", "qwen2-tied-mixed-windows", "qwen3-tied-mixed-windows"]
TOKENS = torch.randint(96, (T,), generator=torch.Generator().manual_seed(0))
TOLERANCE = 1e-9


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("masks")
    return {name: write_checkpoint(CASES[name], root / name) for name in NAMES}


@pytest.fixture(scope="module")
def decoders(folders: dict[str, Path]) -> dict[str, Decoder]:
    return {
        name: load(str(folder), dtype=torch.float64).decoder for name, folder in folders.items()
    }


# Each two of mask, order of positions and family meet.
TRIPLES = [
    (mask, order, NAMES[(i + j) % len(NAMES)])
    for i, mask in enumerate(MASKS)
    for j, order in enumerate(POSITIONS)
]


@pytest.mark.parametrize(("mask", "order", "name"), TRIPLES)
def test_any_4d_mask(
    folders: dict[str, Path], decoders: dict[str, Decoder], mask: str, order: str, name: str
) -> None:
    inputs = (TOKENS, POSITIONS[order], MASKS[mask])
    with float64_islands():
        expected = reference_logits(folders[name], *inputs, torch.float64)
    ours = decoders[name].logits(decoders[name](*inputs))
    assert (ours - expected).abs().max() <= TOLERANCE


@pytest.mark.parametrize("name", NAMES)
@torch.no_grad()
def test_a_batch_that_the_library_pads_on_the_left(
    folders: dict[str, Path], decoders: dict[str, Decoder], name: str
) -> None:
    """With its 2-D mask, 0 = padding. Ours says the same in 4-D: nobody sees padding."""
    lengths = (20, 64, T)
    padding = torch.stack([torch.arange(T) < T - length for length in lengths])
    tokens = TOKENS.expand(3, T).masked_fill(padding, 0)
    positions = (~padding).cumsum(dim=1).sub(1).clamp(min=0)
    with float64_islands():
        expected = reference_model(folders[name], torch.float64)(
            input_ids=tokens, position_ids=positions, attention_mask=(~padding).long()
        ).logits
    mask = causal_mask(T) & ~padding[:, None] | torch.eye(T, dtype=torch.bool)
    ours = decoders[name].logits(decoders[name](tokens, positions, mask))
    assert (ours - expected)[~padding].abs().max() <= TOLERANCE
