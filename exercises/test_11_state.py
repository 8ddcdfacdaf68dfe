"""Tests of exercise 11. They compare with minise/lab/recurrent/."""

from __future__ import annotations

from types import ModuleType

import pytest
import torch
from torch import Tensor

from exercises.checks import examples, same
from minise.lab.recurrent.paths import paths_of
from minise.lab.recurrent.steps import by_steps
from minise.layout import causal_mask, pack

# Depth first, as it is packed; then a tree whose rows go by depth, so that parents are far away.
TREE = pack([5, 6, 7], [[1, 2, 3], [1, 2, 4, 4], [8], [1, 9]], tree=True)
ORDER = TREE.positions.argsort(stable=True)
MASKS = {
    "one prompt": causal_mask(6),
    "a tree": TREE.mask,
    "a tree by depth": TREE.mask[ORDER][:, ORDER],
    "the paper's layout": pack([5, 6], [[1, 2], [3], [4, 4, 4]]).mask,
    "two documents": torch.block_diag(causal_mask(3), causal_mask(4)).bool(),
}
Given = tuple[Tensor, Tensor, Tensor, Tensor]


def given_for(mask: Tensor, fade: float = 0.2) -> Given:
    draw = torch.Generator().manual_seed(0)
    T = len(mask)

    def normal(*size: int) -> Tensor:
        return torch.randn(*size, generator=draw, dtype=torch.float64)

    g = -fade * torch.rand(T, generator=draw, dtype=torch.float64)
    return normal(T, 3), normal(T, 3), normal(T, 2), g


def expected_of(given: Given, mask: Tensor) -> Tensor:
    q, k, v, g = given
    heads = q[:, None], k[:, None], v[:, None], g[:, None, None]
    return by_steps(*heads, None, paths_of(mask))[:, 0]


@pytest.mark.parametrize("case", MASKS)
def test_a_state_comes_from_the_parent(exercise: ModuleType, case: str) -> None:
    mask = MASKS[case]
    given = given_for(mask)
    got = exercise.by_states(*given, mask)
    same(got, expected_of(given, mask), f"what the tokens of {case} read", 1e-12)


@pytest.mark.parametrize("case", MASKS)
def test_the_mask_alone_gives_the_same(exercise: ModuleType, case: str) -> None:
    mask = MASKS[case]
    given = given_for(mask)
    got = exercise.by_mask(*given, mask)
    same(got, expected_of(given, mask), f"what the tokens of {case} read by the mask", 1e-12)


def test_what_the_mask_hides_does_not_overflow(exercise: ModuleType) -> None:
    """Decays of another branch make the difference of two sums large and positive."""
    mask = pack([5], [[1, 2, 3, 4], [6, 7]]).mask
    given = given_for(mask, fade=3000.0)
    got = exercise.by_mask(*given, mask)
    same(got, expected_of(given, mask), "what the tokens read where states fade fast", 1e-12)


def test_the_examples_are_true(exercise: ModuleType) -> None:
    examples(exercise)
