"""Tests of exercise 2. They compare with minise/layout.py."""

from __future__ import annotations

from types import ModuleType

import pytest

from exercises.checks import examples, holds, same
from minise.layout import causal_mask, pack

LENGTHS = [(2, [2, 3]), (3, [1, 1, 4]), (0, [2, 2]), (4, [3])]  # of a prefix and its branches


def test_every_branch_begins_right_after_the_prefix(exercise: ModuleType) -> None:
    got = exercise.packed_positions(3, [2, 2, 2])
    words = "packed_positions(3, [2, 2, 2]): each branch must begin at 3, after the prefix's 0, 1,"
    holds(got[[3, 5, 7]].tolist() == [3, 3, 3], f"{words} 2. Yours: {got.tolist()}")


@pytest.mark.parametrize(("prefix", "branches"), LENGTHS)
def test_positions_are_those_of_each_prompt_alone(
    exercise: ModuleType, prefix: int, branches: list[int]
) -> None:
    expected = pack(range(prefix), [range(length) for length in branches]).positions
    what = f"packed_positions({prefix}, {branches})"
    same(exercise.packed_positions(prefix, branches), expected, what)


@pytest.mark.parametrize("tree", [False, True])
def test_a_mask_says_where_its_tokens_stand(exercise: ModuleType, tree: bool) -> None:
    layout = pack([7, 8], [[1, 2, 5], [1, 3], [1, 2, 6, 6]], tree)
    got = exercise.positions_from_mask(layout.mask)
    same(got, layout.positions, "positions_from_mask of a packed sequence")
    got = exercise.positions_from_mask(causal_mask(5))
    same(got, causal_mask(5).sum(1) - 1, "positions_from_mask of the causal mask of 5 tokens")


def test_the_examples_are_true(exercise: ModuleType) -> None:
    examples(exercise)
