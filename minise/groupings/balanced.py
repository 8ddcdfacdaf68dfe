"""Balanced designs: the partitions behind the grouping "balanced".

In N random partitions some pairs of choices meet often and others rarely, and a choice takes some
labels more often than others. A design is a search for partitions in which these counts are equal,
or as nearly equal as the search can make them. For 8 choices in groups of 4 and 7 trials it finds
partitions in which every two choices meet exactly 3 times.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from itertools import combinations, permutations
from math import comb

from minise.errors import InputError
from minise.grouping import Groups, check_sizes, permutation

MOST_DESIGNED = 200  # choices
# A search tries random exchanges: 60 for each exchange that is possible, at most 100,000 in all
# (about 0.2 s). More tries improve the designs very little.
_TRIES_PER_EXCHANGE = 60
_MAX_TRIES = 100_000

# Random.random, the one method whose sequence Python promises to keep from version to version.
_Draw = Callable[[], float]


@dataclass(frozen=True)
class Design:
    """`trials`: N partitions of range(K) into groups of m. If m does not divide K, the last group
    of each trial is smaller. A group lists its choices in the order of their labels."""

    trials: tuple[tuple[tuple[int, ...], ...], ...]

    @property
    def pair_range(self) -> tuple[int, int]:
        """The fewest and the most times that two choices meet in a group. For one choice: 0, 0."""
        met = Counter(
            pair
            for trial in self.trials
            for group in trial
            for pair in combinations(sorted(group), 2)
        )
        return _range(met[pair] for pair in combinations(self._choices, 2))

    @property
    def label_ranges(self) -> list[tuple[int, int]]:
        """The fewest and the most times that a choice takes a label: in the groups of m and, if
        there are smaller groups, in those."""
        taken = Counter(
            (len(group), label, choice)
            for trial in self.trials
            for group in trial
            for label, choice in enumerate(group)
        )
        return [
            _range(taken[size, i, choice] for i in range(size) for choice in self._choices)
            for size in sorted({len(group) for group in self.trials[0]}, reverse=True)
        ]

    @property
    def balance(self) -> str:
        """These ranges in words.

        >>> design(8, 4, 7).balance
        'balance: pairs meet 3 times; each choice takes each label 1 or 2 times'
        """
        pairs = _times(self.pair_range)
        labels = ", in the smaller group ".join(map(_times, self.label_ranges))
        return f"balance: pairs meet {pairs}; each choice takes each label {labels}"

    @property
    def _choices(self) -> range:
        return range(sum(map(len, self.trials[0])))


def balanced_partitions(K: int, m: int, trials: int, seed: int, question_id: str) -> Groups:
    """Not in the paper: a fixed design of N partitions in which pairs of choices meet, and choices
    take labels, as equally often as a search can make it.

    One random permutation, drawn from (seed, question_id), assigns the choices to the design. So
    each group alone is as random as the paper's: the mean (Eq. 2) has the same expectation, and a
    smaller variance.
    """
    renamed = permutation(K, f"balanced/{seed}/{question_id}")
    plan = design(K, m, trials)
    partitions = []
    for trial in plan.trials:
        partitions.append(tuple(tuple(renamed[i] for i in group) for group in trial))
    return Groups(tuple(partitions), balance=plan.balance)


@cache
def design(num_choices: int, group_size: int, trials: int) -> Design:
    """The design of N = `trials` partitions of K choices into groups of m = `group_size`.

    It depends on these three numbers only. A design of fewer trials is not a part of a design of
    more trials. The search balances, in this order:

    1. how often each pair of choices meets and how often each choice is in the smaller group: it
       minimizes the sum of the squares of these counts, and often reaches the least one possible,
       for example for (8, 4, 7);
    2. how often the same choices form a group, in the same way; of several results with equal sums
       it takes the one in which the times that pairs meet differ least;
    3. how often a choice takes each label: in groups of one size the counts of a choice differ by
       at most 1. The search also balances how often it does so beside each other choice.

    Raises InputError if a number is below 1, and for more than MOST_DESIGNED choices.
    """
    check_sizes(num_choices, group_size, trials)
    if num_choices > MOST_DESIGNED:
        limit = f"a balanced grouping is for {MOST_DESIGNED} choices at most"
        raise InputError(f"{limit}, not {num_choices}; use random")
    size = min(group_size, num_choices)
    partitions = _partitions(num_choices, size, trials)
    groups = [group for trial in partitions for group in trial]
    draw = random.Random(f"labels/{num_choices}/{size}/{trials}").random
    full = iter(_order(num_choices, [group for group in groups if len(group) == size], draw))
    smaller = iter(_order(num_choices, [group for group in groups if len(group) < size], draw))
    return Design(
        tuple(
            tuple(next(full if len(group) == size else smaller) for group in trial)
            for trial in partitions
        )
    )


def _partitions(num_choices: int, size: int, trials: int) -> list[list[list[int]]]:
    """The best result of several searches (points 1 and 2 of `design`), labels not yet chosen."""
    full, rest = divmod(num_choices, size)
    possible = trials * (comb(full, 2) * size**2 + full * size * rest)
    tries = min(_MAX_TRIES, max(1, _TRIES_PER_EXCHANGE * possible))
    meetings = trials * (full * comb(size, 2) + comb(rest, 2))
    least = (
        _least_squares(meetings, comb(num_choices, 2)) + _least_squares(trials * rest, num_choices),
        _least_squares(trials * full, comb(num_choices, size))
        + _least_squares(trials * (rest > 0), comb(num_choices, rest)),
    )
    results = []
    for start in range(_MAX_TRIES // tries):
        draw = random.Random(f"partitions/{num_choices}/{size}/{trials}/{start}").random
        sums, partitions = _search(num_choices, size, trials, draw, tries, least)
        results.append((sums, partitions))
        if sums == least:
            break
    return min(results, key=lambda result: (*result[0], _spread(result[1])))[1]


def _spread(partitions: list[list[list[int]]]) -> int:
    """By how much the times that pairs meet differ."""
    low, high = Design(tuple(tuple(map(tuple, trial)) for trial in partitions)).pair_range
    return high - low


def _random_partitions(
    num_choices: int, size: int, trials: int, draw: _Draw
) -> tuple[list[list[list[int]]], list[list[int]], Counter[frozenset[int]]]:
    """Where the search starts: partitions, how often two choices meet in them, and how often each
    group occurs.

    The smaller group gets one extra member, number K, that is never exchanged. A choice meets it
    each time it is in the smaller group, so `met` also counts how often that happens.
    """
    extra = num_choices
    met = [[0] * (num_choices + 1) for _ in range(num_choices + 1)]
    times: Counter[frozenset[int]] = Counter()
    partitions = []
    for _ in range(trials):
        # The end of `order` becomes the smaller group: the choices that were least often in it.
        order = sorted(range(num_choices), key=lambda i: (-met[i][extra], draw()))
        trial = [order[i : i + size] for i in range(0, num_choices, size)]
        if len(trial[-1]) < size:
            trial[-1].append(extra)
        for group in trial:
            times[frozenset(group)] += 1
            for a, b in permutations(group, 2):
                met[a][b] += 1
        partitions.append(trial)
    return partitions, met, times


def _search(
    num_choices: int, size: int, trials: int, draw: _Draw, tries: int, least: tuple[int, int]
) -> tuple[tuple[int, int], list[list[list[int]]]]:
    """Start from random partitions and exchange two choices of a trial, again and again.

    An exchange is made if it lowers `pairs`, the sum of the squares of `met`, or leaves it equal
    and does not raise `repeats`, that of `times`. The search ends early if the sums are `least`.
    Returns the two sums and the partitions.
    """
    partitions, met, times = _random_partitions(num_choices, size, trials, draw)
    extra = num_choices
    pairs = sum(n * n for row in met for n in row) // 2
    repeats = sum(n * n for n in times.values())

    for _ in range(tries):
        if (pairs, repeats) == least:
            break
        trial = partitions[int(draw() * trials)]
        x, y = int(draw() * num_choices), int(draw() * num_choices)
        if x // size == y // size:
            continue
        one, other = trial[x // size], trial[y // size]
        a, b = one[x % size], other[y % size]
        moves = (([c for c in one if c != a], a, b), ([c for c in other if c != b], b, a))
        # A count n that rises adds 2n + 1 to its sum of squares, one that falls adds 1 - 2n.
        # `growth` and `again` are half of what the exchange adds to the two sums.
        growth = sum(met[now][c] - met[was][c] + 1 for mates, was, now in moves for c in mates)
        if growth > 0:
            continue
        old = frozenset(one), frozenset(other)
        new = old[0] ^ {a, b}, old[1] ^ {a, b}
        again = times[new[0]] + times[new[1]] - times[old[0]] - times[old[1]] + 2
        if growth == 0 and again > 0:
            continue
        for mates, was, now in moves:
            for c in mates:
                met[was][c] -= 1
                met[c][was] -= 1
                met[now][c] += 1
                met[c][now] += 1
        one[x % size], other[y % size] = b, a
        times.subtract(old)
        times.update(new)
        pairs += 2 * growth
        repeats += 2 * again
    return (pairs, repeats), [[[c for c in g if c != extra] for g in trial] for trial in partitions]


def _order(num_choices: int, groups: list[list[int]], draw: _Draw) -> list[tuple[int, ...]]:
    """Groups of one size with their choices in the order of their labels (point 3 of `design`).

    Exchanges two labels in a group if that does not increase the sum of the squares of `beside`, in
    which the row beside[choice][choice] has double weight. Then makes these rows even.
    """
    if not groups:
        return []
    size = len(groups[0])
    groups = [sorted(group, key=lambda _: draw()) for group in groups]
    # beside[choice][mate][label]: how often the choice takes the label in a group with the mate.
    # The row beside[choice][choice] counts all groups of the choice.
    beside = [[[0] * size for _ in range(num_choices)] for _ in range(num_choices)]
    for group in groups:
        for label, choice in enumerate(group):
            for mate in group:
                beside[choice][mate][label] += 1
    for _ in range(min(_MAX_TRIES, _TRIES_PER_EXCHANGE * len(groups) * comb(size, 2))):
        group = groups[int(draw() * len(groups))]
        i, j = int(draw() * size), int(draw() * size)
        if i == j:
            continue
        moves = ((group[i], i, j), (group[j], j, i))
        growth = 0
        for choice, before, after in moves:
            for mate in group:
                counts = beside[choice][mate]
                growth += (1 + (mate == choice)) * (counts[after] - counts[before] + 1)
        if growth > 0:
            continue
        group[i], group[j] = group[j], group[i]
        for choice, before, after in moves:
            for mate in group:
                beside[choice][mate][before] -= 1
                beside[choice][mate][after] += 1
    taken = [beside[choice][choice] for choice in range(num_choices)]
    for choice in range(num_choices):
        while max(taken[choice]) - min(taken[choice]) > 1:
            _even_out(groups, taken, choice)
    return [tuple(group) for group in groups]


def _even_out(groups: list[list[int]], taken: list[list[int]], choice: int) -> None:
    """Let a choice take its commonest label once less and its rarest label once more.

    In a group where the choice has the common label, exchange it with the choice that has the rare
    one. If this makes the two labels of that other choice uneven, continue with it in the same way,
    in a group not changed before.

    Such a group exists: the groups changed so far give the other choice the common label at most
    once more than the rare one, but in all groups the difference is at least 2. So the chain ends.
    A choice in the middle of the chain keeps its counts, and the last one stays even.
    """
    common, rare = (taken[choice].index(f(taken[choice])) for f in (max, min))
    changed: set[int] = set()
    while taken[choice][common] - taken[choice][rare] > 1:
        n = next(i for i, g in enumerate(groups) if g[common] == choice and i not in changed)
        changed.add(n)
        group = groups[n]
        group[common], group[rare] = group[rare], choice
        taken[choice][common] -= 1
        taken[choice][rare] += 1
        choice = group[common]
        taken[choice][common] += 1
        taken[choice][rare] -= 1


def _least_squares(total: int, counts: int) -> int:
    """The least sum of squares of `counts` integers with this total: each rounds the mean."""
    mean, more = divmod(total, max(counts, 1))
    return counts * mean**2 + more * (2 * mean + 1)


def _range(counts: Iterable[int]) -> tuple[int, int]:
    numbers = list(counts) or [0]
    return min(numbers), max(numbers)


def _times(span: tuple[int, int]) -> str:
    low, high = span
    number = f"{low}" if low == high else f"{low} {'or' if high == low + 1 else 'to'} {high}"
    return f"{number} time{'s' * (high != 1)}"
