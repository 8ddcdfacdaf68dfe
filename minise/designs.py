"""Partitions that balance one another, the same ones every time: what "balanced" groups come from.

Of N partitions drawn independently, some let a pair of choices meet often and another pair seldom,
and give a choice one label often and another label seldom. In a design these counts are as equal as
a search makes them: for 8 choices in groups of 4, any two choices meet in 3 of 7 trials exactly.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from math import comb

from minise.errors import InputError

# Random exchanges that a search tries: so many for each that there is, but no more than so many in
# all, which take about 0.2 s. More of them gain little.
_TIMES_EACH = 60
_EXCHANGES = 100_000

# How much a choice's label counts beside a pair's label: see _order.
_LABEL_WEIGHT = 2


@dataclass(frozen=True)
class Design:
    """`trials`: N partitions of range(K), each into groups of m and, last, the smaller one if m
    does not divide K; a group lists its choices in the order of their labels."""

    trials: tuple[tuple[tuple[int, ...], ...], ...]

    @property
    def pair_range(self) -> tuple[int, int]:
        """The fewest and the most times that two choices meet in a group; 0, 0 for one choice."""
        num_choices = sum(map(len, self.trials[0]))
        met = Counter(
            pair
            for trial in self.trials
            for group in trial
            for pair in combinations(sorted(group), 2)
        )
        return _range(met[pair] for pair in combinations(range(num_choices), 2))

    @property
    def label_range(self) -> tuple[int, int]:
        """The fewest and the most times that a choice takes a label in the groups of m: they differ
        by 1 at most where m divides K."""
        return self._labels(len(self.trials[0][0]))

    @property
    def rest_label_range(self) -> tuple[int, int] | None:
        """The same in the smaller groups; None if there are none."""
        size = len(self.trials[0][-1])
        return self._labels(size) if size < len(self.trials[0][0]) else None

    @property
    def balance(self) -> str:
        """These ranges in words.

        >>> design(8, 4, 7).balance
        'balance: pairs meet 3 times; each choice takes each label 1 or 2 times'
        """
        text = (
            f"balance: pairs meet {_times(self.pair_range)}; "
            f"each choice takes each label {_times(self.label_range)}"
        )
        rest = self.rest_label_range
        return text if rest is None else f"{text}, in the smaller group {_times(rest)}"

    def _labels(self, size: int) -> tuple[int, int]:
        num_choices = sum(map(len, self.trials[0]))
        taken = Counter(
            (choice, label)
            for trial in self.trials
            for group in trial
            if len(group) == size
            for label, choice in enumerate(group)
        )
        return _range(
            taken[choice, label] for choice in range(num_choices) for label in range(size)
        )


@cache
def design(num_choices: int, group_size: int, trials: int) -> Design:
    """The design of N = `trials` partitions of K choices into groups of m = `group_size`.

    It depends on these three numbers alone; that of fewer trials is not part of that of more. The
    search makes equal, one after the other,

    1. how often each pair meets and how often each choice is in the smaller group: the sum of the
       squares of these counts is the least found. For 7 trials of 8 choices in groups of 4, and
       often else, none is smaller;
    2. how often the same choices make a group: likewise;
    3. how often a choice takes each label: the counts of one choice, in groups of one size, differ
       by 1 at most; and where that leaves freedom, how often it does so beside each other choice.

    Raises InputError for nothing to group, groups of nothing or no trials.
    """
    check_sizes(num_choices, group_size, trials)
    size = min(group_size, num_choices)
    partitions = _partitions(num_choices, size, trials)
    full, rest = divmod(num_choices, size)
    draw = random.Random(f"labels/{num_choices}/{size}/{trials}").random
    listed = _order(num_choices, [group for trial in partitions for group in trial[:full]], draw)
    last = _order(num_choices, [group for trial in partitions for group in trial[full:]], draw)
    return Design(
        tuple(
            (*listed[t * full : (t + 1) * full], *(last[t : t + 1] if rest else ()))
            for t in range(trials)
        )
    )


def check_sizes(num_choices: int, group_size: int, trials: int = 1) -> None:
    """Raise InputError for nothing to group, groups of nothing or no trials."""
    if num_choices < 1:
        raise InputError("there are no choices to group")
    if group_size < 1:
        raise InputError(f"group size {group_size} is below 1; a group needs at least one choice")
    if trials < 1:
        raise InputError(f"number of trials {trials} is below 1; at least one is needed")


def _partitions(num_choices: int, size: int, trials: int) -> list[list[list[int]]]:
    """The best of several searches (points 1 and 2 of `design`); groups in no order."""
    full, rest = divmod(num_choices, size)
    exchanges = trials * (comb(full, 2) * size**2 + full * size * rest)
    steps = min(_EXCHANGES, max(1, _TIMES_EACH * exchanges))
    meetings = trials * (full * comb(size, 2) + comb(rest, 2))
    least = (
        _least_squares(meetings, comb(num_choices, 2)) + _least_squares(trials * rest, num_choices),
        _least_squares(trials * full, comb(num_choices, size))
        + _least_squares(trials * (rest > 0), comb(num_choices, rest)),
    )
    best = None
    for start in range(_EXCHANGES // steps):
        draw = random.Random(f"partitions/{num_choices}/{size}/{trials}/{start}").random
        found = _search(num_choices, size, trials, draw, steps, least)
        if best is None or found[0] < best[0]:
            best = found
        if best[0] == least:
            break
    assert best is not None
    return best[1]


def _search(
    num_choices: int,
    size: int,
    trials: int,
    draw: Callable[[], float],
    steps: int,
    least: tuple[int, int],
) -> tuple[tuple[int, int], list[list[list[int]]]]:
    """Random partitions, then exchanges of two choices of a trial that do not enlarge the two sums
    of squares; those that leave them as they are lead on. Returns the sums and the partitions."""
    # In the smaller group everyone also meets one choice more, which is never exchanged: so `met`
    # counts how often each is there, too.
    extra = num_choices
    met = [[0] * (num_choices + 1) for _ in range(num_choices + 1)]
    times: Counter[int] = Counter()
    partitions = []
    for _ in range(trials):
        # Last, where the smaller group is cut, those that were least often in it.
        order = sorted(range(num_choices), key=lambda i: (-met[i][extra], draw()))
        trial = [order[i : i + size] for i in range(0, num_choices, size)]
        if len(trial[-1]) < size:
            trial[-1].append(extra)
        for group in trial:
            times[_bits(group)] += 1
            for a, b in combinations(group, 2):
                met[a][b] += 1
                met[b][a] += 1
        partitions.append(trial)
    pairs = sum(n * n for row in met for n in row) // 2
    repeats = sum(n * n for n in times.values())

    for _ in range(steps):
        if (pairs, repeats) == least:
            break
        trial = partitions[int(draw() * trials)]
        x, y = int(draw() * num_choices), int(draw() * num_choices)
        if x // size == y // size:
            continue
        one, other = trial[x // size], trial[y // size]
        a, b = one[x % size], other[y % size]
        # Half of what the sum grows by as b takes a's mates and a takes b's.
        growth = sum(met[b][c] - met[a][c] + 1 for c in one if c != a)
        growth += sum(met[a][c] - met[b][c] + 1 for c in other if c != b)
        if growth > 0:
            continue
        old = _bits(one), _bits(other)
        new = old[0] ^ (1 << a | 1 << b), old[1] ^ (1 << a | 1 << b)
        again = times[new[0]] + times[new[1]] - times[old[0]] - times[old[1]] + 2
        if growth == 0 and again > 0:
            continue
        for group, leaves, joins in ((one, a, b), (other, b, a)):
            for c in group:
                if c != leaves:
                    met[leaves][c] -= 1
                    met[c][leaves] -= 1
                    met[joins][c] += 1
                    met[c][joins] += 1
        one[x % size], other[y % size] = b, a
        times.subtract(old)
        times.update(new)
        pairs += 2 * growth
        repeats += 2 * again
    return (pairs, repeats), [[[c for c in g if c != extra] for g in trial] for trial in partitions]


def _order(
    num_choices: int, groups: list[list[int]], draw: Callable[[], float]
) -> list[tuple[int, ...]]:
    """Groups of one size with their choices in the order of their labels (point 3 of `design`).

    Exchanges of two labels in a group that do not enlarge the sum of squares over choice and label
    (twice) and over choice, label and another choice of the group (once); then what is left uneven
    of the former is made even.
    """
    if not groups:
        return []
    size = len(groups[0])
    groups = [sorted(group, key=lambda _: draw()) for group in groups]
    taken = [[0] * size for _ in range(num_choices)]
    beside = [[[0] * size for _ in range(num_choices)] for _ in range(num_choices)]
    for group in groups:
        for label, choice in enumerate(group):
            taken[choice][label] += 1
            for mate in group:
                beside[mate][choice][label] += 1  # a choice beside itself is never looked up
    for _ in range(min(_EXCHANGES, _TIMES_EACH * len(groups) * comb(size, 2))):
        group = groups[int(draw() * len(groups))]
        i, j = int(draw() * size), int(draw() * size)
        if i == j:
            continue
        a, b = group[i], group[j]
        gain = _LABEL_WEIGHT * (taken[a][j] - taken[a][i] + taken[b][i] - taken[b][j] + 2)
        for mate in group:
            if mate != a:
                gain += beside[mate][a][j] - beside[mate][a][i] + 1
            if mate != b:
                gain += beside[mate][b][i] - beside[mate][b][j] + 1
        if gain > 0:
            continue
        group[i], group[j] = b, a
        for choice, before, after in ((a, i, j), (b, j, i)):
            taken[choice][before] -= 1
            taken[choice][after] += 1
            for mate in group:
                beside[mate][choice][before] -= 1
                beside[mate][choice][after] += 1
    for choice in range(num_choices):
        while max(taken[choice]) - min(taken[choice]) > 1:
            _even_out(groups, taken, choice)
    return [tuple(group) for group in groups]


def _even_out(groups: list[list[int]], taken: list[list[int]], choice: int) -> None:
    """Let a choice take its commonest label once less and its rarest once more.

    In a group where it has the one, exchange it with the choice that has the other. If that choice
    now has the first label too often, go on with it in a group not changed yet: there is one, since
    of those changed as many gave it the one label as the other, but for the last. So this ends, and
    a choice whose labels were within 1 keeps them so.
    """
    much, little = (taken[choice].index(f(taken[choice])) for f in (max, min))
    changed: set[int] = set()
    while taken[choice][much] - taken[choice][little] > 1:
        n = next(n for n, group in enumerate(groups) if group[much] == choice and n not in changed)
        changed.add(n)
        group = groups[n]
        group[much], group[little] = group[little], choice
        taken[choice][much] -= 1
        taken[choice][little] += 1
        choice = group[much]
        taken[choice][much] += 1
        taken[choice][little] -= 1


def _bits(group: Iterable[int]) -> int:
    return sum(1 << choice for choice in group)


def _least_squares(total: int, counts: int) -> int:
    """The least sum of squares of so many counts with this total: all floor or ceil of the mean."""
    mean, more = divmod(total, max(counts, 1))
    return counts * mean**2 + more * (2 * mean + 1)


def _range(counts: Iterable[int]) -> tuple[int, int]:
    found = list(counts) or [0]
    return min(found), max(found)


def _times(span: tuple[int, int]) -> str:
    low, high = span
    number = f"{low}" if low == high else f"{low} {'or' if high == low + 1 else 'to'} {high}"
    return f"{number} time{'s' * (high != 1)}"
