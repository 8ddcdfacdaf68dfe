"""Balanced designs: they are partitions, as even as promised, and the same on every platform."""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from collections.abc import Sequence
from itertools import combinations, combinations_with_replacement

import pytest

from minise import InputError
from minise.groupings.balanced import Design, _search, design

GRID = [(k, m, n) for k in (1, 2, 5, 8, 10) for m in (1, 2, 4, 6, 10) for n in (1, 3, 20)]
# Here even labels form a Latin square. Exchanges alone do not find one.
LATIN = [(8, 4, 4), (12, 4, 4), (10, 5, 5), (11, 5, 5), (10, 4, 5), (6, 6, 6)]

Trials = tuple[tuple[tuple[int, ...], ...], ...]


def meetings(trials: Trials, together: int = 2) -> Counter[tuple[int, ...]]:
    """How often each pair (or triple, ...) is in one group."""
    return Counter(
        chosen for trial in trials for g in trial for chosen in combinations(sorted(g), together)
    )


def labels(trials: Trials, choices: int, size: int) -> list[list[int]]:
    """How often each choice takes each label in groups of this size."""
    taken = [[0] * size for _ in range(choices)]
    for group in (g for trial in trials for g in trial if len(g) == size):
        for label, choice in enumerate(group):
            taken[choice][label] += 1
    return taken


@pytest.mark.parametrize(("k", "m", "n"), GRID + LATIN)
def test_every_trial_is_a_partition_and_its_labels_are_even(k: int, m: int, n: int) -> None:
    trials = design(k, m, n).trials
    assert len(trials) == n
    sizes = [min(m, k)] * (k // min(m, k)) + [k % m] * (m < k and k % m > 0)
    for trial in trials:
        assert [len(group) for group in trial] == sizes
        assert sorted(choice for group in trial for choice in group) == list(range(k))
    for size in set(sizes):
        taken = labels(trials, k, size)
        assert all(max(row) - min(row) <= 1 for row in taken)
        if len(set(sizes)) == 1:
            assert {count for row in taken for count in row} <= {n // size, -(-n // size)}


@pytest.mark.parametrize(
    ("k", "m", "n", "times"),
    [
        (8, 4, 7, 3),  # the planes of the affine space AG(3, 2)
        (8, 4, 14, 6),
        (4, 2, 3, 1),  # one-factorizations
        (10, 2, 9, 1),
        (26, 2, 25, 1),
        (9, 3, 4, 1),  # the lines of the affine plane AG(2, 3)
        (16, 4, 5, 1),  # and of AG(2, 4)
        (6, 2, 5, 1),
        (6, 3, 10, 4),  # all ten partitions
        (10, 5, 18, 8),  # half of a Hadamard matrix of order 20; 9 trials would need one of 10
        (12, 6, 11, 5),  # a Hadamard matrix of order 12
        (5, 2, 5, 1),  # a smaller group in each: round robin with a bye
        (5, 4, 5, 3),
        (7, 6, 7, 5),
    ],
)
def test_pairs_meet_equally_often_where_a_design_of_the_literature_exists(
    k: int, m: int, n: int, times: int
) -> None:
    balanced = design(k, m, n)
    pairs = meetings(balanced.trials)
    assert [pairs[pair] for pair in combinations(range(k), 2)] == [times] * (k * (k - 1) // 2)
    rests = Counter(choice for trial in balanced.trials if k % m for choice in trial[-1])
    assert not rests or set(rests.values()) == {n * (k % m) // k}


def sums_of_squares(k: int, size: int, trials: Sequence[Sequence[Sequence[int]]]) -> list[int]:
    """Sums of squares, counted from the partitions alone: of how often each pair meets and each
    choice is in the smaller group, and of how often the same choices form a group."""
    pairs, rests, same = Counter(), Counter(), Counter()
    for trial in trials:
        assert sorted(choice for group in trial for choice in group) == list(range(k))
        for group in trial:
            pairs.update(combinations(sorted(group), 2))
            rests.update(group if len(group) < size else ())
            same[len(group) < size, tuple(sorted(group))] += 1
    squares = [sum(n * n for n in counts.values()) for counts in (pairs, rests, same)]
    return [squares[0] + squares[1], squares[2]]


@pytest.mark.parametrize(
    ("k", "m", "n"), [(8, 4, 7), (8, 4, 20), (10, 4, 5), (7, 4, 6), (7, 6, 3), (6, 2, 5), (5, 4, 8)]
)
def test_the_search_counts_correctly_and_never_gets_worse(k: int, m: int, n: int) -> None:
    """From the same start with more and more tries. The least sums cannot be reached, so no try is
    left out."""
    before, exchanged = None, 0
    for tries in [*range(60), 500, 5000]:
        sums, partitions = _search(k, m, n, random.Random(7).random, tries, least=(0, 0))
        assert list(sums) == sums_of_squares(k, m, partitions)
        assert before is None or sums <= before[0]
        exchanged += before is not None and partitions != before[1]
        before = sums, partitions
    assert exchanged > 2


def test_the_search_ends_at_the_least_sums() -> None:
    """In one trial of groups of 4, every exchange leaves both sums as they are."""

    def partitions(tries: int, least: tuple[int, int]) -> list[list[list[int]]]:
        sums, trials = _search(8, 4, 1, random.Random(7).random, tries, least)
        assert sums == (12, 2)
        return trials

    start = partitions(0, (12, 2))
    assert partitions(100, (12, 2)) == start
    for out_of_reach in [(12, 1), (11, 2)]:
        assert partitions(100, out_of_reach) != start


@pytest.mark.parametrize(
    ("k", "m", "n", "least"),
    [
        (8, 4, 7, [28 * 3**2, 14]),
        (9, 3, 4, [36, 12]),
        (6, 2, 5, [15, 15]),
        (6, 3, 10, [15 * 4**2, 20]),
        (8, 4, 14, [28 * 6**2, 28]),  # repeated groups are avoided, too
        (5, 2, 5, [10 + 5, 15]),  # each choice is alone once
        (5, 4, 5, [10 * 3**2 + 5, 10]),
        (7, 4, 7, [21 * 3**2 + 7 * 3**2, 14]),  # the planes and lines of the Fano plane
    ],
)
def test_designs_of_the_literature_reach_the_least_possible_sums(
    k: int, m: int, n: int, least: list[int]
) -> None:
    assert sums_of_squares(k, m, design(k, m, n).trials) == least


def all_partitions(choices: Sequence[int], size: int) -> list[list[list[int]]]:
    """Every partition into groups of `size`, the last of which may be smaller."""
    k = len(choices)
    if k <= size:
        return [[list(choices)]]
    if k % size:
        partitions = []
        for rest in combinations(choices, k % size):
            others = [i for i in choices if i not in rest]
            partitions += [[*groups, list(rest)] for groups in all_partitions(others, size)]
        return partitions
    first, *others = choices
    return [
        [[first, *mates], *groups]
        for mates in combinations(others, size - 1)
        for groups in all_partitions([i for i in others if i not in mates], size)
    ]


@pytest.mark.parametrize(
    ("k", "m", "n"),
    [
        *((4, m, n) for m in (2, 3) for n in range(1, 7)),
        *((5, m, n) for m in (2, 3, 4) for n in range(1, 5)),
        *((6, m, n) for m in (2, 3, 4) for n in range(1, 4)),
        *((7, m, 2) for m in (2, 3, 4)),
        (8, 4, 3),
    ],
)
def test_tiny_designs_are_as_good_as_the_best_by_brute_force(k: int, m: int, n: int) -> None:
    """Brute force: every choice of n partitions, repetition allowed. (The first may be any one,
    because choices can be renamed.)"""
    every = all_partitions(range(k), m)
    best = min(
        sums_of_squares(k, m, [every[0], *more])
        for more in combinations_with_replacement(every, n - 1)
    )
    assert sums_of_squares(k, m, design(k, m, n).trials) == best


def test_of_designs_with_equal_sums_the_one_with_the_smaller_range_is_taken() -> None:
    """Pairs meet 1 to 4 times, or 2 to 4 times, with the same sums of squares."""
    balanced = design(6, 3, 6)
    assert sums_of_squares(6, 3, balanced.trials) == [96, 12]
    assert balanced.pair_range == (2, 4)


def test_seven_trials_of_eight_choices_hold_every_triple_once() -> None:
    triples = meetings(design(8, 4, 7).trials, 3)
    assert len(triples) == 56
    assert set(triples.values()) == {1}


@pytest.mark.parametrize(
    ("k", "m", "n", "share"),
    [(10, 4, 20, 0.1), (11, 3, 20, 0.1), (9, 5, 20, 0.15), (12, 4, 11, 0.15), (26, 5, 80, 0.05)],
)
def test_pairs_meet_far_more_evenly_than_in_random_partitions(
    k: int, m: int, n: int, share: float
) -> None:
    """`share` is the limit. The measured values are at most four fifths of it."""

    def spread(trials: Trials) -> float:
        met = meetings(trials)
        pairs = list(combinations(range(k), 2))
        mean = sum(met.values()) / len(pairs)
        return sum((met[pair] - mean) ** 2 for pair in pairs)

    draw = random.Random(0)
    orders = [[draw.sample(range(k), k) for _ in range(n)] for _ in range(20)]
    cut = [
        tuple(tuple(tuple(order[i : i + m]) for i in range(0, k, m)) for order in some)
        for some in orders
    ]
    assert spread(design(k, m, n).trials) < share * sum(map(spread, cut)) / len(cut)


def test_no_group_is_repeated_before_all_others_were_used() -> None:
    few = meetings(design(8, 4, 20).trials, 4)
    assert len(few) == 40
    many = meetings(design(8, 4, 40).trials, 4)
    assert len(many) == 70
    assert set(many.values()) == {1, 2}


def test_each_choice_is_equally_often_in_the_smaller_group() -> None:
    for n in (5, 20, 40):
        rests = Counter(choice for trial in design(10, 4, n).trials for choice in trial[-1])
        assert [rests[choice] for choice in range(10)] == [n // 5] * 10


def test_each_choice_takes_each_label_about_as_often_beside_each_other_choice() -> None:
    """The mean is 8.6 times. If only the labels of each single choice were even, the maximum would
    be 13."""
    beside = Counter(
        (choice, label, mate)
        for trial in design(8, 4, 80).trials
        for group in trial
        for label, choice in enumerate(group)
        for mate in group
    )
    times = [
        beside[i, label, j] for i in range(8) for j in range(8) for label in range(4) if i != j
    ]
    assert min(times) >= 6
    assert max(times) <= 11


def test_designs_of_many_trials_are_as_even_as_those_of_few() -> None:
    many = design(10, 4, 1000)
    low, high = many.pair_range
    assert high - low <= 2
    for low, high in many.label_ranges:
        assert high - low <= 2


def test_the_designs_never_change() -> None:
    """Golden values. A different design, on any platform or version, would change all results."""
    assert design(4, 2, 3).trials == FOUR
    shown = repr([design(*sizes).trials for sizes in [(8, 4, 7), (8, 4, 20), (10, 4, 5)]])
    assert hashlib.sha256(shown.encode()).hexdigest() == EIGHT_AND_TEN


def test_the_balance_is_stated_in_words_and_numbers() -> None:
    uneven = Design((((0, 1, 2), (3, 4)), ((1, 0, 4), (2, 3)), ((1, 0, 3), (4, 2))))
    assert uneven.pair_range == (1, 3)
    assert uneven.label_ranges == [(0, 2), (0, 1)]
    assert uneven.balance == (
        "balance: pairs meet 1 to 3 times; each choice takes each label 0 to 2 times, "
        "in the smaller group 0 or 1 time"
    )
    even = design(8, 4, 20)
    assert even.label_ranges == [(5, 5)]
    assert even.balance == (
        "balance: pairs meet 8 or 9 times; each choice takes each label 5 times"
    )
    assert design(1, 1, 2).pair_range == (0, 0)


@pytest.mark.parametrize(
    ("sizes", "text"),
    [
        (
            (7, 4, 7),
            "pairs meet 3 times; each choice takes each label 1 time, in the smaller group 1 time",
        ),
        (
            (11, 4, 1),
            "pairs meet 0 or 1 time; each choice takes each label 0 or 1 time, "
            "in the smaller group 0 or 1 time",
        ),
        ((8, 4, 1), "pairs meet 0 or 1 time; each choice takes each label 0 or 1 time"),
        ((3, 3, 1), "pairs meet 1 time; each choice takes each label 0 or 1 time"),
        ((1, 1, 1), "pairs meet 0 times; each choice takes each label 1 time"),
    ],
    ids=str,
)
def test_the_balance_of_a_smaller_group_of_three_and_of_a_single_trial(
    sizes: tuple[int, int, int], text: str
) -> None:
    assert design(*sizes).balance == f"balance: {text}"


@pytest.mark.parametrize(("k", "m", "n"), [*GRID, (7, 4, 5), (11, 4, 3), (9, 5, 1)])
def test_the_stated_ranges_are_those_counted_from_the_groups(k: int, m: int, n: int) -> None:
    balanced = design(k, m, n)
    pairs = meetings(balanced.trials)
    times = [pairs[pair] for pair in combinations(range(k), 2)] or [0]
    assert balanced.pair_range == (min(times), max(times))
    sizes = [min(m, k)] + [k % m] * (m < k and k % m > 0)
    taken = [labels(balanced.trials, k, size) for size in sizes]
    assert balanced.label_ranges == [(min(map(min, rows)), max(map(max, rows))) for rows in taken]


@pytest.mark.parametrize(
    ("sizes", "complaint"),
    [
        ((0, 4, 1), "no choices"),
        ((8, 0, 1), "group size 0"),
        ((8, 4, 0), "number of trials 0"),
        ((201, 4, 20), "200 choices at most, not 201"),
    ],
)
def test_impossible_designs_are_refused(sizes: tuple[int, int, int], complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        design(*sizes)


def test_a_design_has_at_most_200_choices() -> None:
    assert len(design(200, 2, 1).trials[0]) == 100


FOUR = (((3, 2), (1, 0)), ((0, 3), (1, 2)), ((2, 0), (3, 1)))
EIGHT_AND_TEN = "798fed1c37e308998ad93fb6a59b455493f2c520733afb4b8494dec341878393"
