"""Other ways to choose the groups, and all of them by name."""

import random
from itertools import permutations
from math import perm

from minise.errors import InputError, check_name, shorten
from minise.grouping import MOST_GROUPS, Grouping, Groups, random_partitions
from minise.loading.plugin import find_function


def independent_draws(K: int, m: int, trials: int, seed: int, question_id: str) -> Groups:
    """The released code's grouping: each trial is one draw of m choices. A choice may be drawn
    rarely or never. With an empty question_id all questions get the same draws, as in that code."""
    # The generator of the released code, so that the seed 0 gives the same groups of indices.
    generator = random.Random(f"{seed}/{question_id}" if question_id else seed)
    draws = []
    for _ in range(trials):
        group = generator.sample(range(K), min(m, K))
        draws.append((tuple(group),))
    return Groups(tuple(draws))


def all_ordered_groups(K: int, m: int, trials: int, seed: int, question_id: str) -> Groups:
    """The limit of infinitely many trials: every ordered group that a random partition can hold, as
    often as a trial holds it on average. The last three arguments have no effect.

    In a trial each of the floor(K / m) full groups is uniform over the ordered m-subsets of the
    choices, and the rest, if there is one, over the ordered subsets of its size. So a rest comes
    perm(K, m) / perm(K, rest) / floor(K / m) times as often as a full group, a whole number; a tree
    of tokens holds it once. Raises InputError for more than MOST_GROUPS groups.
    """
    m = min(m, K)
    full, rest = divmod(K, m)
    times = {m: 1}
    if rest:
        times[rest] = perm(K, m) // (perm(K, rest) * full)
    count = sum(number * perm(K, size) for size, number in times.items())
    if count > MOST_GROUPS:
        over = f"over the limit of {MOST_GROUPS:,}; use smaller groups, or random ones"
        many = shorten(f"{count:,}", 40)
        raise InputError(f"{K} choices have {many} ordered groups of {m}, {over}")
    flat: list[tuple[int, ...]] = []
    for size, number in times.items():
        for group in permutations(range(K), size):
            flat.extend([group] * number)
    return Groups((tuple(flat),))


GROUPINGS: dict[str, Grouping] = {
    "random": random_partitions,
    "independent": independent_draws,
    "exact": all_ordered_groups,
}


def grouping_named(name: str | Grouping) -> Grouping:
    """The grouping for a name in GROUPINGS or "FILE.py:NAME"; a function is returned as it is."""
    if not isinstance(name, str):
        return name
    if ":" in name:
        grouping: Grouping = find_function(name)
        return grouping
    check_name("grouping", name, GROUPINGS)
    return GROUPINGS[name]
