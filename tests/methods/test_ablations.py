"""Self-Ensemble without the mask, and without positional re-encoding."""

import pytest
import torch

from minise import LanguageModel, pack
from minise.layout import causal_mask
from minise.method import label_logits
from tests.support.methods import ENGINES, QUESTION, SIZES, ask, plan

METHODS = ("without-mask", "without-positions")


@pytest.mark.parametrize("name", METHODS)
def test_one_part_of_the_packed_layout_is_left_out(lm: LanguageModel, name: str) -> None:
    whole, ablated = (plan(lm, one, QUESTION, **SIZES) for one in ("self-ensemble", name))
    assert (ablated.prefix, ablated.prompts) == (whole.prefix, whole.prompts)
    packed, layout = pack(whole.prefix, whole.branches), ablated.layout
    assert layout is not None
    T = len(packed.tokens)
    assert torch.equal(layout.tokens, packed.tokens)
    assert torch.equal(layout.ends, packed.ends)
    left_out = name == "without-mask"
    assert torch.equal(layout.mask, causal_mask(T) if left_out else packed.mask)
    assert torch.equal(layout.positions, packed.positions if left_out else torch.arange(T))
    assert {ablated.tokens(engine) for engine in ENGINES} == {T}


@pytest.mark.parametrize("name", METHODS)
def test_it_is_computed_as_the_definition_computes_that_layout(
    lm: LanguageModel, name: str
) -> None:
    ablated = plan(lm, name, QUESTION, **SIZES)
    layout = ablated.layout
    assert layout is not None
    hidden = lm.decoder(layout.tokens, layout.positions, layout.mask)[layout.ends]
    expected = lm.decoder.logits(hidden)
    packed = label_logits(lm, plan(lm, "self-ensemble", QUESTION, **SIZES))
    changes = []
    rows = label_logits(lm, ablated)
    for row, prompt, one, whole in zip(expected, ablated.prompts, rows, packed, strict=True):
        assert (row[prompt.label_ids] - one).abs().max() <= 1e-10
        changes.append(float((one.softmax(0) - whole.softmax(0)).abs().max()))
    assert max(changes) > 1e-3


def test_every_engine_runs_their_packed_layout(qwen: LanguageModel) -> None:
    for name in METHODS:
        each = [ask(qwen, name, QUESTION, engine, **SIZES) for engine in ENGINES]
        assert all(torch.equal(each[0], p) for p in each)
