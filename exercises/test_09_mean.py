"""Tests of exercise 9. They compare with minise/method.py."""

from __future__ import annotations

from types import ModuleType

import pytest
import torch
from torch import Tensor

from exercises.checks import examples, holds, same
from minise.grouping import random_partitions
from minise.method import Group, combine

K, SIZE, TRIALS = 7, 3, 6  # the last group of each trial has one choice
GROUPS = random_partitions(K, SIZE, TRIALS, seed=0, question_id="")


@pytest.fixture(scope="module")
def probabilities() -> list[list[float]]:
    """Of each group: some of it is left for "None of the above"."""
    random = torch.Generator().manual_seed(0)
    drawn = [torch.rand(len(group) + 1, generator=random).double() for group in GROUPS.flat]
    return [(values / values.sum())[:-1].tolist() for values in drawn]


def results(groups: list[tuple[int, ...]], probabilities: list[list[float]]) -> list[Group]:
    pairs = zip(groups, probabilities, strict=True)
    return [Group(group, torch.tensor(p, dtype=torch.float64), None) for group, p in pairs]


def scores(K: int, groups: list[tuple[int, ...]], probabilities: list[list[float]]) -> Tensor:
    return combine(K, results(groups, probabilities)).scores


def test_a_score_is_the_mean_over_the_groups_that_hold_the_choice(
    exercise: ModuleType, probabilities: list[list[float]]
) -> None:
    expected = scores(K, GROUPS.flat, probabilities)
    got = exercise.mean_scores(K, GROUPS.flat, probabilities)
    same(got, expected, f"mean_scores of {K} choices in {TRIALS} trials", 1e-12)


def test_choices_in_more_groups_than_others_and_in_none(exercise: ModuleType) -> None:
    groups, values = [(0, 1), (0, 3), (0, 1)], [[0.5, 0.25], [0.75, 0.0], [0.25, 0.5]]
    expected = scores(4, groups, values)
    got = exercise.mean_scores(4, groups, values)
    same(got, expected, "mean_scores where choice 0 is in three groups, choice 2 in none", 1e-12)


def test_the_standard_error_of_each_score(
    exercise: ModuleType, probabilities: list[list[float]]
) -> None:
    values_NK = torch.zeros(TRIALS, K, dtype=torch.float64)
    given = iter(probabilities)
    for trial, groups in enumerate(GROUPS.trials):
        for group in groups:
            values_NK[trial, list(group)] = torch.tensor(next(given), dtype=torch.float64)
    expected = values_NK.std(dim=0) / TRIALS**0.5
    got = exercise.standard_errors(values_NK)
    same(got, expected, f"standard_errors of {TRIALS} trials of {K} choices", 1e-12)


def test_the_error_is_as_large_as_means_really_vary(exercise: ModuleType) -> None:
    """4,000 experiments of 5 trials each: the spread of their means is what the error estimates.

    The root of the mean square is compared, because the square is estimated without bias.
    """
    random = torch.Generator().manual_seed(1)
    experiments: Tensor = torch.rand(4000, 5, generator=random, dtype=torch.float64)
    really = float(experiments.mean(dim=1).std())
    got = exercise.standard_errors(experiments.T)
    yours = float(got.square().mean().sqrt())
    words = f"the means of 4,000 experiments of 5 trials vary by {really:.3f} (standard deviation)"
    holds(abs(yours / really - 1) < 0.05, f"{words}; your standard error says {yours:.3f}")


def test_the_examples_are_true(exercise: ModuleType) -> None:
    examples(exercise)
