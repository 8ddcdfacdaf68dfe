"""A widened decoder computes what a whole copy in the wider dtype computes."""

from __future__ import annotations

import copy

import pytest
import torch

from minise import LanguageModel, pack
from minise.checking.widened import widened
from minise.exact import run as exact
from tests.support.tiny import ALL_FAMILIES, load_tiny


@pytest.mark.parametrize("family", ALL_FAMILIES)
def test_hidden_states_and_logits_are_those_of_a_whole_copy(tmp_path, family: str) -> None:
    """In a family with an output matrix, and in one that reads out with its embedding."""
    narrow = load_tiny(tmp_path, ALL_FAMILIES[family], dtype=torch.bfloat16).decoder
    wide, whole = widened(narrow, torch.float64), copy.deepcopy(narrow).double()
    layout = pack([40, 41, 42], [[50, 51], [60, 61, 62]])
    states = [
        exact.forward(decoder, layout.tokens, layout.positions, layout.mask)
        for decoder in (wide, whole)
    ]
    assert states[0].dtype == torch.float64
    assert torch.equal(*states)
    assert torch.equal(wide.logits(states[0]), whole.logits(states[1]))


def test_the_narrow_decoder_is_unchanged(lm: LanguageModel) -> None:
    before = {name: tensor.clone() for name, tensor in lm.decoder.state_dict().items()}
    wide = widened(lm.decoder, torch.float64)
    layout = pack([40], [[50]])
    wide(layout.tokens, layout.positions, layout.mask)
    for name, tensor in lm.decoder.state_dict().items():
        assert tensor.dtype == before[name].dtype
        assert torch.equal(tensor, before[name])
