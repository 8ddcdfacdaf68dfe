"""Tests of exercise 1. They compare with minise/layout.py."""

from __future__ import annotations

from types import ModuleType

import pytest

from exercises.checks import examples, holds, same
from minise.layout import causal_mask, pack

LENGTHS = [(2, [2, 3]), (3, [1, 1, 4]), (0, [2, 2]), (4, [3])]  # of a prefix and its branches


@pytest.mark.parametrize("length", [1, 2, 7])
def test_in_one_prompt_a_token_sees_itself_and_all_before_it(
    exercise: ModuleType, length: int
) -> None:
    same(exercise.causal_mask(length), causal_mask(length), f"causal_mask({length})")


@pytest.mark.parametrize(("prefix", "branches"), LENGTHS)
def test_every_token_sees_itself(exercise: ModuleType, prefix: int, branches: list[int]) -> None:
    seen = exercise.packed_mask(prefix, branches).diagonal()
    words = f"packed_mask({prefix}, {branches}): a token does not see itself"
    holds(seen.all(), f"{words}. Its softmax would have nothing to choose from: NaN.")


@pytest.mark.parametrize(("prefix", "branches"), LENGTHS)
def test_a_branch_sees_the_prefix_and_itself_and_no_other_branch(
    exercise: ModuleType, prefix: int, branches: list[int]
) -> None:
    expected = pack(range(prefix), [range(length) for length in branches]).mask
    what = f"packed_mask({prefix}, {branches})"
    same(exercise.packed_mask(prefix, branches), expected, what)


def test_the_examples_are_true(exercise: ModuleType) -> None:
    examples(exercise)
