"""Which choices share a group (Section 3.2, step 1). Knows nothing of text, tokens or the model."""

from __future__ import annotations

import hashlib
import random
from itertools import permutations
from math import perm

from minise.designs import check_sizes, design
from minise.errors import InputError

GROUPINGS = ("random", "balanced", "independent", "exact")


def make_groups(
    num_choices: int,
    group_size: int,
    trials: int,
    seed: int,
    question_id: str,
    grouping: str = "random",
) -> list[list[int]]:
    """Sampled groups of choice indices, trial after trial, in the order a prompt lists them.

    "random", the paper's: each trial permutes the K choices and cuts them into consecutive groups
    of m = `group_size`; the last may be smaller. N trials give N * ceil(K / m) groups.
    "balanced", not in the paper: a fixed design of N partitions in which pairs of choices meet, and
    choices take labels, as equally often as can be; one random permutation says which choice is
    which in it. Each group alone is as random as the paper's, so Eq. 3 has the same mean, and a
    smaller variance. "independent", the released code's: each trial is a single draw of m choices;
    a choice may come up seldom or never.

    A random trial depends on (seed, question_id, trial) and nothing else, balanced groups on (seed,
    question_id, `trials`): not on the order or number of questions, the process, the platform or a
    library's version.

    >>> make_groups(5, 2, 2, seed=0, question_id="q1")
    [[3, 0], [2, 4], [1], [0, 2], [3, 1], [4]]
    """
    check_sizes(num_choices, group_size, trials)
    if grouping == "random":
        return [
            order[start : start + group_size]
            for trial in range(trials)
            for order in [permutation(num_choices, f"{seed}/{question_id}/{trial}")]
            for start in range(0, num_choices, group_size)
        ]
    if grouping == "balanced":
        renamed = permutation(num_choices, f"balanced/{seed}/{question_id}")
        partitions = design(num_choices, group_size, trials).trials
        return [[renamed[i] for i in group] for trial in partitions for group in trial]
    if grouping == "independent":
        # The released code's own generator, so that seed 0 gives its index sets. With an empty id
        # every question gets the same ones, as there.
        generator = random.Random(f"{seed}/{question_id}" if question_id else seed)
        size = min(group_size, num_choices)
        return [generator.sample(range(num_choices), size) for _ in range(trials)]
    raise InputError(f'grouping "{grouping}" is unknown; use one of {", ".join(GROUPINGS)}')


def exact_groups(num_choices: int, group_size: int) -> list[tuple[list[int], float]]:
    """Every ordered group that a random partition can hold, with how many a trial holds on average.

    In a trial each of the floor(K / m) full groups is uniform over the ordered m-subsets of the
    choices, and the rest, if there is one, over the ordered subsets of its size. The weighted mean
    over these groups is the limit of Eq. 3 for infinitely many trials.

    >>> [(group, round(weight, 3)) for group, weight in exact_groups(3, 2)]
    ... # doctest: +NORMALIZE_WHITESPACE
    [([0, 1], 0.167), ([0, 2], 0.167), ([1, 0], 0.167), ([1, 2], 0.167), ([2, 0], 0.167),
     ([2, 1], 0.167), ([0], 0.333), ([1], 0.333), ([2], 0.333)]
    """
    return [
        (list(group), copies / perm(num_choices, size))
        for size, copies in exact_sizes(num_choices, group_size)
        for group in permutations(range(num_choices), size)
    ]


def exact_sizes(num_choices: int, group_size: int) -> list[tuple[int, int]]:
    """The sizes of a partition's groups, each with how many groups of that size there are."""
    check_sizes(num_choices, group_size)
    size = min(group_size, num_choices)
    full, rest = divmod(num_choices, size)
    return [(size, full)] + [(rest, 1)] * (rest > 0)


def permutation(n: int, key: str) -> list[int]:
    """A uniform permutation of range(n), the same everywhere: each item draws 256 bits by hashing
    the key with its own index, and the draws are sorted."""
    return sorted(range(n), key=lambda i: hashlib.sha256(f"{key}/{i}".encode()).digest())
