"""Nineteen known mistakes of recurrent layers in packed rows: each is caught by comparing every
prompt with that prompt alone, where states fade slowly and there are three branches or more."""

from __future__ import annotations

import functools

import pytest
import torch

from minise.engines import separate
from minise.lab.recurrent.qwen35 import Qwen35
from tests.lab.recurrent.hybrid import SLOW, make_decoder
from tests.lab.recurrent.mistakes import MISTAKES, Row, planted, row_of, some_prompts

FAST = 2.5  # a mean of A_log: a state is gone after a token
# The largest that a right packed row is off, as a part of the logits' size, in float64.
RIGHT = 1e-12


@functools.cache
def decoder_with(A_log: float) -> Qwen35:
    return make_decoder(A_log=A_log)


def off_by(mistake: str, A_log: float = SLOW) -> torch.Tensor:
    """How far the logits of each branch are off, as a part of their size."""
    decoder = decoder_with(A_log)
    prompts = some_prompts(0)
    right = decoder.logits(separate(decoder, prompts.prefix, prompts.branches))
    row: Row = MISTAKES[mistake](prompts) if mistake else row_of(prompts)
    with planted(row):
        hidden = decoder(row.tokens, row.positions, row.seen, row.ends)
    apart = (decoder.logits(hidden) - right).square().mean(dim=-1).sqrt()
    return apart / right.square().mean().sqrt()


def test_the_row_without_a_mistake_is_right() -> None:
    assert float(off_by("").max()) < RIGHT
    assert len(MISTAKES) == 19


@pytest.mark.parametrize("mistake", MISTAKES)
def test_each_mistake_is_caught(mistake: str) -> None:
    assert float(off_by(mistake).max()) > 1e-3


def test_the_first_branch_alone_would_let_eight_pass() -> None:
    silent = [mistake for mistake in MISTAKES if float(off_by(mistake)[0]) < RIGHT]
    assert len(silent) == 8


def test_fast_decay_would_hide_what_leaks_through_the_state_alone() -> None:
    """Below the 1e-3 that rounding to bfloat16 makes."""
    for mistake in (
        "the state goes on over borders",
        "the state begins with nothing",
        "decays are summed over the row",
        "padding on the left enters the state",
        "the state is read at the end of the padded prompt",
    ):
        assert float(off_by(mistake, FAST).max()) < 2e-3 < float(off_by(mistake).max())
