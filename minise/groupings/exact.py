"""All ordered groups instead of a sample: the limit of infinitely many trials."""

from __future__ import annotations

from itertools import permutations
from math import perm

from minise.errors import InputError, shorten
from minise.grouping import MOST_GROUPS, Group, Groups


def all_ordered_groups(K: int, m: int, trials: int, seed: int, question_id: str) -> Groups:
    """Every ordered group that a random partition can hold, weighted by how many of it a trial
    holds on average. `trials`, `seed` and `question_id` have no effect.

    In a trial each of the floor(K / m) full groups is uniform over the ordered m-subsets of the
    choices, and the rest, if there is one, over the ordered subsets of its size. The weighted mean
    over these groups is the limit of the mean (Eq. 2) for infinitely many trials.

    Raises InputError for more than MOST_GROUPS groups.

    >>> groups = all_ordered_groups(3, 2, 0, 0, "")
    >>> [(group, round(weight, 3)) for group, weight in zip(groups.flat, groups.weights)]
    ... # doctest: +NORMALIZE_WHITESPACE
    [((0, 1), 0.167), ((0, 2), 0.167), ((1, 0), 0.167), ((1, 2), 0.167), ((2, 0), 0.167),
     ((2, 1), 0.167), ((0,), 0.333), ((1,), 0.333), ((2,), 0.333)]
    """
    size = min(m, K)
    full, rest = divmod(K, size)
    sizes = [(size, full)] + [(rest, 1)] * (rest > 0)
    count = sum(perm(K, size) for size, _ in sizes)
    if count > MOST_GROUPS:
        raise InputError(
            f"exact grouping of {K} choices in groups of {size} has {shorten(f'{count:,}', 80)} "
            f"ordered groups, over the limit of {MOST_GROUPS:,}; "
            "use smaller groups, or sample them with random"
        )
    groups: list[Group] = []
    weights: list[float] = []
    for size, copies in sizes:
        ordered = list(permutations(range(K), size))
        groups += ordered
        weights += [copies / perm(K, size)] * len(ordered)
    return Groups((tuple(groups),), tuple(weights), complete=True)
