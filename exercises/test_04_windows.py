"""Tests of exercise 4. They compare with minise/attention.py."""

from __future__ import annotations

from types import ModuleType

import pytest

from exercises.checks import examples, holds, same
from minise.attention import within
from minise.layout import pack

LAYOUT = pack([7, 8, 9], [[1, 2], [1, 3, 4], [5, 6]])


def test_a_window_counts_the_token_itself(exercise: ModuleType) -> None:
    """Token 2 is the last of the prefix, and has two tokens before it."""
    for window in (1, 2, 3):
        seen = exercise.windowed(LAYOUT.mask.clone(), LAYOUT.positions, window)[2].sum()
        words = f"with a window of {window}, token 2 must see {window} tokens, itself included"
        holds(seen == window, f"{words}. In yours it sees {int(seen)}.")


def test_a_window_opens_nothing_that_the_mask_forbids(exercise: ModuleType) -> None:
    got = exercise.windowed(LAYOUT.mask.clone(), LAYOUT.positions, 4)
    holds(not (got & ~LAYOUT.mask).any(), "a token sees what the mask without a window forbids")


@pytest.mark.parametrize("window", [1, 2, 4, 100])
def test_the_last_branch_reads_the_prefix_as_the_first_does(
    exercise: ModuleType, window: int
) -> None:
    positions = LAYOUT.positions
    expected = within(LAYOUT.mask, positions, positions, window)
    got = exercise.windowed(LAYOUT.mask.clone(), positions, window)
    same(got, expected, f"windowed with positions {positions.tolist()} and a window of {window}")


def test_the_examples_are_true(exercise: ModuleType) -> None:
    examples(exercise)
