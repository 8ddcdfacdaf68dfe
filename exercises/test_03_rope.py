"""Tests of exercise 3. They compare with minise/rope.py."""

from __future__ import annotations

from dataclasses import replace
from types import ModuleType

import pytest
import torch
from torch import Tensor

import minise
from exercises.checks import examples, holds, same
from minise.config import RopeScaling
from minise.rope import cos_sin, inverse_frequencies
from minise.rope import rotate as reference

THETA, HEAD_DIM = 10_000.0, 8
POSITIONS = torch.tensor([0, 1, 2, 3, 2, 3, 4])  # of a packed sequence: they are no indices


@pytest.fixture(scope="module")
def config(lm: minise.LocalModel) -> minise.Config:
    plain = RopeScaling()
    return replace(lm.config, head_dim=HEAD_DIM, rope_theta=THETA, rope_scaling=plain)


def queries(length: int, dtype: torch.dtype = torch.float64) -> Tensor:
    random = torch.Generator().manual_seed(0)
    return torch.randn(length, 3, HEAD_DIM, generator=random, dtype=torch.float64).to(dtype)


def test_the_frequencies_fall_from_one(exercise: ModuleType, config: minise.Config) -> None:
    expected = inverse_frequencies(config, torch.float64, torch.device("cpu"))
    got = exercise.frequencies(HEAD_DIM, THETA, torch.float64)
    same(got, expected, f"frequencies({HEAD_DIM}, {THETA}, torch.float64)", 1e-12)


def test_position_0_is_not_rotated(exercise: ModuleType) -> None:
    x, start = queries(2), torch.zeros(2, dtype=torch.int64)
    same(exercise.rotate(x, start, THETA), x, "rotate at position 0", 1e-6)


def test_pairs_are_split_halves(exercise: ModuleType) -> None:
    """The first dimension alone is not 0: after the rotation only its partner may be, too."""
    x = torch.zeros(1, 1, HEAD_DIM, dtype=torch.float64)
    x[..., 0] = 1.0
    touched = exercise.rotate(x, torch.tensor([1]), THETA)[0, 0].nonzero().flatten().tolist()
    partner = f"dimension 0 must turn towards dimension {HEAD_DIM // 2}, its partner"
    holds(touched == [0, HEAD_DIM // 2], f"{partner}. In yours it ends in dimensions {touched}.")


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_tokens_turn_by_their_position_ids(
    exercise: ModuleType, config: minise.Config, dtype: torch.dtype
) -> None:
    x = queries(len(POSITIONS), dtype)
    expected = reference(x, *cos_sin(config, POSITIONS[:, None], dtype))
    what = f"rotate of {dtype} queries at positions {POSITIONS.tolist()}"
    same(exercise.rotate(x, POSITIONS, THETA), expected, what, 1e-6)


def test_float64_stays_float64(exercise: ModuleType, config: minise.Config) -> None:
    """Right to 1e-6, but not to 1e-12: somewhere float32 took the place of float64."""
    x = queries(len(POSITIONS))
    expected = reference(x, *cos_sin(config, POSITIONS[:, None], torch.float64))
    words = "rotate of float64 queries (precision: angles, cosines and sines need float64, too)"
    same(exercise.rotate(x, POSITIONS, THETA), expected, words, 1e-12)


def test_only_the_difference_of_positions_counts(exercise: ModuleType) -> None:
    q, k = queries(4)[:2], queries(4)[2:]
    products = [
        (
            exercise.rotate(q, torch.tensor([7, 9]) + shift, THETA)
            * exercise.rotate(k, torch.tensor([3, 3]) + shift, THETA)
        ).sum(-1)
        for shift in (0, 100)
    ]
    words = "query times key, all positions 100 further on (only their difference may count)"
    same(products[1], products[0], words, 1e-4)


def test_far_positions_survive_bfloat16(exercise: ModuleType, config: minise.Config) -> None:
    """bfloat16 has no 257, and of an angle of 1,001 radians it would keep nothing."""
    positions = torch.tensor([257, 1001])
    x = queries(2, torch.bfloat16)
    expected = reference(x, *cos_sin(config, positions[:, None], torch.bfloat16))
    words = "rotate of bfloat16 queries at positions 257 and 1001 (the angles need float32)"
    same(exercise.rotate(x, positions, THETA), expected, words, 0.04)


def test_the_examples_are_true(exercise: ModuleType) -> None:
    examples(exercise)
