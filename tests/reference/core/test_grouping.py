"""Groups are partitions, the same on every machine, and depend on nothing but what they should."""

from collections import Counter
from itertools import permutations

import pytest

from minise import Groups, InputError
from minise.grouping import MOST_GROUPS, check_sizes, random_partitions


def test_the_first_groups_never_change() -> None:
    """Golden values: other groups, on any platform or version, would change every result."""
    built_in = [(5, 4, 0, 2), (1, 3, 7, 6), (6, 5, 1, 0), (3, 7, 4, 2)]
    assert random_partitions(8, 4, 2, 0, "built-in").flat == built_in
    assert random_partitions(10, 4, 1, 7, "q-3").trials == (((7, 0, 6, 5), (2, 9, 4, 3), (8, 1)),)


@pytest.mark.parametrize(
    ("k", "m"), [(8, 4), (10, 4), (5, 2), (1, 4), (6, 1), (6, 6), (3, 4), (2, 1)]
)
def test_every_trial_is_a_partition_into_consecutive_groups_of_m(k: int, m: int) -> None:
    groups = random_partitions(k, m, 7, 3, "x")
    per_trial = -(-k // m)
    assert [len(trial) for trial in groups.trials] == [per_trial] * 7
    assert groups.flat == [group for trial in groups.trials for group in trial]
    for trial in groups.trials:
        assert sorted(choice for group in trial for choice in group) == list(range(k))
        assert [len(group) for group in trial[:-1]] == [m] * (per_trial - 1)
        assert len(trial[-1]) == (k - 1) % m + 1


def test_a_trial_depends_on_seed_question_and_number_alone() -> None:
    few = random_partitions(8, 4, 3, 0, "x").trials
    assert random_partitions(8, 4, 9, 0, "x").trials[:3] == few
    assert len(set(random_partitions(8, 4, 9, 0, "x").trials)) == 9
    for seed, key in ((1, "x"), (0, "y")):
        assert not set(random_partitions(8, 4, 3, seed, key).trials) & set(few)
    # One permutation whatever the group size: m only says where it is cut.
    pairs = [choice for group in random_partitions(8, 2, 3, 0, "x").flat for choice in group]
    assert pairs == [choice for trial in few for group in trial for choice in group]


def test_every_ordered_group_is_equally_likely() -> None:
    n = 12_000
    counts = Counter(random_partitions(4, 2, 1, seed, "u").flat[0] for seed in range(n))
    pairs = list(permutations(range(4), 2))
    assert set(counts) == set(pairs)
    expected = n / len(pairs)
    chi_square = sum((counts[pair] - expected) ** 2 / expected for pair in pairs)
    assert chi_square < 31.3  # 99.9% of the chi-square distribution with 11 degrees of freedom


@pytest.mark.parametrize(
    ("k", "m", "trials", "named"),
    [
        (8, 0, 20, "group size 0"),
        (8, 4, 0, "number of trials 0"),
        (4, 4, MOST_GROUPS + 1, "50001 trials"),
        (8, 4, 10**5000, "over the limit of 50,000 groups"),
    ],
    ids=["groups of none", "no trials", "too many groups", "a huge number"],
)
def test_sizes_out_of_range_are_refused_before_groups_are_made(
    k: int, m: int, trials: int, named: str
) -> None:
    with pytest.raises(InputError) as caught:
        check_sizes(k, m, trials)
    message = str(caught.value)
    assert named in message
    assert "\n" not in message
    assert len(message) < 400


def test_sizes_that_are_just_allowed_pass() -> None:
    check_sizes(8, 4, MOST_GROUPS // 2)
    check_sizes(1, 1, 1)


def test_groups_know_their_trials_and_the_largest() -> None:
    groups = Groups((((0, 1), (2,)), ((2, 0, 1),)))
    assert groups.flat == [(0, 1), (2,), (2, 0, 1)]
    assert groups.trial_numbers == [0, 0, 1]
    assert groups.largest == 3


@pytest.mark.parametrize(
    ("trials", "named"),
    [
        ((), "no group"),
        (((),), "no group"),
        ((((0, 1), ()),), "a group has no choice"),
        ((((0, 1), (2, -1)),), "index from 0"),
        ((((0, 1), (2, 2)),), "each choice once"),
    ],
)
def test_groups_that_are_none_are_refused(trials, named: str) -> None:
    with pytest.raises(InputError, match=named):
        Groups(trials)
