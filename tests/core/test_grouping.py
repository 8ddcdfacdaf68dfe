"""Groups are partitions, the same on every machine, and depend on nothing but what they should."""

from __future__ import annotations

from collections import Counter
from itertools import permutations
from math import factorial

import pytest

from minise import InputError
from minise.grouping import MOST_GROUPS, Groups
from minise.groupings.registry import GROUPINGS
from tests.support.groupings import exact_groups, flat, make_groups


def test_the_first_groups_never_change() -> None:
    """Golden values: other groups, on any platform or version, would change every result."""
    assert flat(8, 4, 2, seed=0, key="built-in") == BUILT_IN
    assert flat(10, 4, 1, seed=7, key="q-3") == Q_3


BUILT_IN = [[5, 4, 0, 2], [1, 3, 7, 6], [6, 5, 1, 0], [3, 7, 4, 2]]


Q_3 = [[7, 0, 6, 5], [2, 9, 4, 3], [8, 1]]


@pytest.mark.parametrize(
    ("k", "m"), [(8, 4), (10, 4), (5, 2), (1, 4), (6, 1), (6, 6), (3, 4), (2, 1)]
)
def test_every_trial_is_a_partition_into_consecutive_groups_of_m(k: int, m: int) -> None:
    trials = 7
    groups = make_groups(k, m, trials, seed=3, key="x")
    per_trial = -(-k // m)
    assert len(groups.trials) == trials
    assert len(groups.flat) == trials * per_trial
    for trial in groups.trials:
        assert sorted(choice for group in trial for choice in group) == list(range(k))
        assert [len(group) for group in trial[:-1]] == [m] * (per_trial - 1)
        assert len(trial[-1]) == (k - 1) % m + 1


def test_a_trial_depends_on_seed_question_and_number_alone() -> None:
    few = flat(8, 4, 3, seed=0, key="x")
    assert flat(8, 4, 9, seed=0, key="x")[: len(few)] == few
    assert flat(8, 4, 3, seed=1, key="x") != few
    assert flat(8, 4, 3, seed=0, key="y") != few
    # One permutation whatever the group size: m only says where it is cut.
    pairs = [choice for group in flat(8, 2, 3, seed=0, key="x") for choice in group]
    assert pairs == [choice for group in few for choice in group]


def test_every_ordered_group_is_equally_likely() -> None:
    n = 12_000
    counts = Counter(tuple(flat(4, 2, 1, seed=seed, key="u")[0]) for seed in range(n))
    pairs = list(permutations(range(4), 2))
    assert set(counts) == set(pairs)
    expected = n / len(pairs)
    chi_square = sum((counts[pair] - expected) ** 2 / expected for pair in pairs)
    assert chi_square < 31.3  # 99.9% of the chi-square distribution with 11 degrees of freedom


def test_facts_about_the_groups_are_fields() -> None:
    """No code has to read them out of a name."""
    facts = {
        name: (g.independent, g.complete, g.weights is not None)
        for name in GROUPINGS
        for g in [make_groups(6, 3, 5, 0, "x", name)]
    }
    assert facts == {
        "random": (True, False, False),
        "independent": (True, False, False),
        "exact": (False, True, True),
    }


def test_a_users_function_is_a_grouping() -> None:
    def halves(k: int, m: int, trials: int, seed: int, question_id: str) -> Groups:
        return Groups((tuple(tuple(range(i, min(i + m, k))) for i in range(0, k, m)),) * trials)

    assert make_groups(5, 3, 2, 0, "x", halves).flat == [(0, 1, 2), (3, 4)] * 2
    with pytest.raises(InputError, match="group size 0"):
        make_groups(5, 0, 2, 0, "x", halves)
    with pytest.raises(InputError, match="no group holds choice 2"):
        make_groups(4, 2, 1, 0, "x", lambda *_: Groups((((0, 1), (3,)),)))


def test_exactly_as_many_groups_as_the_limit_are_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(make_groups(1, 1, MOST_GROUPS, 0, "x").flat) == MOST_GROUPS
    monkeypatch.setattr("minise.groupings.exact.MOST_GROUPS", 25)
    assert len(make_groups(5, 2, 0, 0, "", "exact").flat) == 25
    with pytest.raises(InputError, match="has 30 ordered groups"):
        make_groups(6, 2, 0, 0, "", "exact")


def test_too_many_exact_groups_are_counted_and_refused_at_once() -> None:
    with pytest.raises(InputError, match=r"has 670,442,572,800 ordered groups, over the limit"):
        make_groups(20, 10, 0, 0, "", "exact")
    assert len(make_groups(10, 5, 0, 0, "", "exact").flat) == 30_240 <= MOST_GROUPS


@pytest.mark.parametrize(("k", "m"), [(8, 4), (5, 2), (4, 1), (3, 3), (3, 7)])
def test_exact_groups_are_what_partitions_hold_on_average(k: int, m: int) -> None:
    """Counted over all k! orders of the choices: how often each ordered group is a part of one."""
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
        (
            (8, 4, 20, 0, "x", "sorted"),
            '"sorted" is unknown; use one of random, independent, exact',
        ),
        ((8, 4, 25_001, 0, "x"), "25001 trials of 8 choices in groups of 4 are over the limit"),
        ((8, 4, 10**9, 0, "x", "independent"), "over the limit of 50,000 groups; use fewer trials"),
        ((8, 4, 10**5000, 0, "x"), "over the limit of 50,000 groups"),
        ((200, 200, 1, 0, "x", "exact"), "ordered groups, over the limit of 50,000"),
        ((1000, 999, 1, 0, "x", "exact"), "ordered groups, over the limit of 50,000"),
    ],
)
def test_impossible_groupings_are_refused(arguments: tuple, complaint: str) -> None:
    with pytest.raises(InputError, match=complaint) as caught:
        make_groups(*arguments)
    assert len(str(caught.value)) < 300
