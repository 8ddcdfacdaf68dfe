"""Balanced trials give the expectation of random ones, with a smaller variance."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import permutations
from math import exp, sqrt
from statistics import mean, stdev, variance

import pytest

from tests.support.groupings import exact_groups, flat


def balanced(k: int, m: int, trials: int, seed: int) -> list[list[int]]:
    return flat(k, m, trials, seed, "u", "balanced")


@pytest.mark.parametrize(
    ("k", "m", "listed", "critical"),
    # 99.999% of the chi-square distribution with 11, 19, 4 and 55 degrees of freedom: of some
    # twenty groups, none is beyond it by chance.
    [(4, 2, 2, 43.2), (5, 2, 2, 57.4), (5, 2, 1, 28.5), (8, 4, 2, 111.6)],
)
def test_every_ordered_group_of_a_balanced_trial_is_equally_likely(
    k: int, m: int, listed: int, critical: float
) -> None:
    """All groups of m and the smaller group, at every place in three trials, over seeds and over
    questions. For 8 choices in groups of 4, only the first two labels are counted."""
    n = 4000
    draws = [balanced(k, m, 3, seed) for seed in range(n // 2)]
    draws += [flat(k, m, 3, 0, f"q{i}", "balanced") for i in range(n // 2)]
    cells = list(permutations(range(k), listed))
    places = [i for i, g in enumerate(draws[0]) if len(g) == (listed if listed < 2 else m)]
    assert places
    for place in places:
        counts = Counter(tuple(groups[place][:listed]) for groups in draws)
        expected = n / len(cells)
        assert sum((counts[c] - expected) ** 2 / expected for c in cells) < critical


def test_seed_and_question_rename_the_choices_of_one_design() -> None:
    groups = balanced(8, 4, 7, seed=0)
    for other in (balanced(8, 4, 7, seed=1), flat(8, 4, 7, 0, "v", "balanced")):
        assert other != groups
        pairs = [
            pair
            for group, renamed in zip(groups, other, strict=True)
            for pair in zip(group, renamed, strict=True)
        ]
        new_name = dict(pairs)
        assert [[new_name[i] for i in group] for group in groups] == other


def test_the_renaming_is_independent_of_the_random_trials() -> None:
    n = 2400
    same = sum(balanced(4, 4, 1, seed) == flat(4, 4, 1, seed, "u") for seed in range(n))
    assert abs(same - n / 24) < 4 * sqrt(n / 24)


def draw_value(*key: object) -> float:
    """Uniform from -1 to 1, the same for the same key."""
    digest = hashlib.sha256(repr(key).encode()).digest()
    return int.from_bytes(digest[:4], "big") / 2**31 - 1


def by_group(group: Sequence[int]) -> list[float]:
    """A model for tests, with unrelated values for every order of every group."""
    odds = [exp(2 * draw_value(tuple(group), choice)) for choice in group]
    return [x / sum(odds) for x in odds]


def by_mates(group: Sequence[int]) -> list[float]:
    """A model for tests, in which each choice becomes more or less likely by each other choice of
    its group, and labels differ."""
    odds = [
        exp(
            draw_value(choice)
            + draw_value("label", label)
            + sum(draw_value(choice, other) for other in group)
        )
        for label, choice in enumerate(group)
    ]
    return [x / sum(odds) for x in odds]


def scores(
    model: Callable[[Sequence[int]], list[float]], k: int, groups: Sequence[Sequence[int]]
) -> list[float]:
    """The mean (Eq. 2)."""
    by_choice: list[list[float]] = [[] for _ in range(k)]
    for group in groups:
        for choice, probability in zip(group, model(group), strict=True):
            by_choice[choice].append(probability)
    return [mean(probabilities) for probabilities in by_choice]


@pytest.mark.parametrize("model", [by_group, by_mates])
@pytest.mark.parametrize(("k", "m", "trials"), [(5, 2, 4), (6, 3, 5), (5, 3, 1)])
def test_balanced_scores_have_the_mean_of_all_partitions(
    k: int, m: int, trials: int, model: Callable[[Sequence[int]], list[float]]
) -> None:
    exact = [0.0] * k
    for group, weight in exact_groups(k, m):
        for choice, probability in zip(group, model(group), strict=True):
            exact[choice] += weight * probability
    probabilities = {tuple(group): model(group) for group, _ in exact_groups(k, m)}
    n = 2000
    runs = [
        scores(lambda group: probabilities[tuple(group)], k, balanced(k, m, trials, seed))
        for seed in range(n)
    ]
    for choice in range(k):
        sampled = [run[choice] for run in runs]
        assert abs(mean(sampled) - exact[choice]) < 4 * stdev(sampled) / sqrt(n)


@pytest.mark.parametrize(
    ("k", "m", "trials", "times"), [(8, 4, 7, 3), (8, 4, 20, 3), (10, 4, 20, 2)]
)
def test_balanced_scores_vary_less(k: int, m: int, trials: int, times: float) -> None:
    """Measured: 4.8, 10.7 and 5.7 times less."""

    def spread(grouping: str) -> float:
        runs = [scores(by_mates, k, flat(k, m, trials, seed, "u", grouping)) for seed in range(60)]
        return mean(variance(run[choice] for run in runs) for choice in range(k))

    assert times * spread("balanced") < spread("random")
