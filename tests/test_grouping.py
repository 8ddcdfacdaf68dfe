"""Groups are partitions, the same on every machine, and depend on nothing but what they should."""

from __future__ import annotations

from collections import Counter
from itertools import permutations
from math import factorial

import pytest

from minise import InputError
from minise.grouping import exact_groups, make_groups


def test_the_first_groups_never_change() -> None:
    """A golden: other groups than these, on any platform or version, would change every result."""
    assert make_groups(8, 4, 2, seed=0, question_id="built-in") == BUILT_IN
    assert make_groups(10, 4, 1, seed=7, question_id="q-3") == Q_3


BUILT_IN = [[5, 4, 0, 2], [1, 3, 7, 6], [6, 5, 1, 0], [3, 7, 4, 2]]
Q_3 = [[7, 0, 6, 5], [2, 9, 4, 3], [8, 1]]


@pytest.mark.parametrize(
    ("k", "m"), [(8, 4), (10, 4), (5, 2), (1, 4), (6, 1), (6, 6), (3, 4), (2, 1)]
)
def test_every_trial_is_a_partition_into_consecutive_groups_of_m(k: int, m: int) -> None:
    trials = 7
    groups = make_groups(k, m, trials, seed=3, question_id="x")
    per_trial = -(-k // m)
    assert len(groups) == trials * per_trial
    for t in range(trials):
        trial = groups[t * per_trial : (t + 1) * per_trial]
        assert sorted(choice for group in trial for choice in group) == list(range(k))
        assert [len(group) for group in trial[:-1]] == [m] * (per_trial - 1)
        assert len(trial[-1]) == (k - 1) % m + 1


def test_a_trial_depends_on_seed_question_and_number_alone() -> None:
    few = make_groups(8, 4, 3, seed=0, question_id="x")
    assert make_groups(8, 4, 9, seed=0, question_id="x")[: len(few)] == few
    assert make_groups(8, 4, 3, seed=1, question_id="x") != few
    assert make_groups(8, 4, 3, seed=0, question_id="y") != few
    # One permutation whatever the group size: m only says where it is cut.
    flat = [choice for group in make_groups(8, 2, 3, seed=0, question_id="x") for choice in group]
    assert flat == [choice for group in few for choice in group]


def test_every_ordered_group_is_equally_likely() -> None:
    n = 12_000
    counts = Counter(
        tuple(make_groups(4, 2, 1, seed=seed, question_id="u")[0]) for seed in range(n)
    )
    pairs = list(permutations(range(4), 2))
    assert set(counts) == set(pairs)
    expected = n / len(pairs)
    chi_square = sum((counts[pair] - expected) ** 2 / expected for pair in pairs)
    assert chi_square < 31.3  # 99.9% of the chi-square distribution with 11 degrees of freedom


def test_independent_draws_are_the_released_codes() -> None:
    """PAPER: 20 draws of 4 of 8 with seed 0 cover A...H 11, 6, 8, 10, 14, 10, 8, 13 times."""
    draws = make_groups(8, 4, 20, seed=0, question_id="", grouping="independent")
    assert all(len(set(draw)) == 4 for draw in draws)
    coverage = Counter(choice for draw in draws for choice in draw)
    assert [coverage[choice] for choice in range(8)] == [11, 6, 8, 10, 14, 10, 8, 13]
    assert draws != make_groups(8, 4, 20, seed=0, question_id="q", grouping="independent")


@pytest.mark.parametrize(("k", "m"), [(8, 4), (5, 2), (4, 1), (3, 3), (3, 7)])
def test_exact_groups_are_what_partitions_hold_on_average(k: int, m: int) -> None:
    """Over all k! orders: how often each ordered group is cut from one, and no other is."""
    if k > 6:
        assert len(exact_groups(k, m)) == 1680
        return
    cut: Counter[tuple[int, ...]] = Counter()
    for order in permutations(range(k)):
        for start in range(0, k, m):
            cut[order[start : start + m]] += 1
    weights = {tuple(group): weight for group, weight in exact_groups(k, m)}
    assert set(weights) == set(cut)
    for group, times in cut.items():
        assert weights[group] == pytest.approx(times / factorial(k), rel=1e-12)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ((0, 4, 20, 0, "x"), "no choices"),
        ((8, 0, 20, 0, "x"), "group size 0"),
        ((8, -1, 20, 0, "x"), "group size -1"),
        ((8, 4, 0, 0, "x"), "number of trials 0"),
        ((8, 4, 20, 0, "x", "sorted"), 'grouping "sorted" is unknown; use one of random'),
    ],
)
def test_impossible_groupings_are_refused(arguments: tuple, complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        make_groups(*arguments)
