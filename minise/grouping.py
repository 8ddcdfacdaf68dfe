"""Which choices share a group (Section 3.2, step 1). Knows nothing of text, tokens or the model."""

from __future__ import annotations

import hashlib
import random

from minise.errors import InputError

GROUPINGS = ("random", "independent")


def make_groups(
    num_choices: int,
    group_size: int,
    trials: int,
    seed: int,
    question_id: str,
    grouping: str = "random",
) -> list[list[int]]:
    """Groups of choice indices, trial after trial, in the order in which a prompt lists them.

    "random", the paper's: each trial permutes the K choices and cuts them into consecutive groups
    of m = `group_size`; the last may be smaller. N trials give N * ceil(K / m) groups.
    "independent", the released code's: each trial is a single draw of m choices; a choice may come
    up seldom or never.

    The groups depend on (seed, question_id, trial) and nothing else: not on the order or number of
    questions, the process, the platform or a library's version.

    >>> make_groups(5, 2, 2, seed=0, question_id="q1")
    [[3, 0], [2, 4], [1], [0, 2], [3, 1], [4]]
    """
    if num_choices < 1:
        raise InputError("there are no choices to group")
    if group_size < 1:
        raise InputError(f"group size {group_size} is below 1; a group needs at least one choice")
    if trials < 1:
        raise InputError(f"number of trials {trials} is below 1; at least one is needed")
    if grouping == "random":
        return [
            order[start : start + group_size]
            for trial in range(trials)
            for order in [_permutation(num_choices, f"{seed}/{question_id}/{trial}")]
            for start in range(0, num_choices, group_size)
        ]
    if grouping == "independent":
        # The released code's own generator, so that seed 0 gives its index sets. With an empty id
        # every question gets the same ones, as there.
        generator = random.Random(f"{seed}/{question_id}" if question_id else seed)
        size = min(group_size, num_choices)
        return [generator.sample(range(num_choices), size) for _ in range(trials)]
    raise InputError(f'grouping "{grouping}" is unknown; use one of {", ".join(GROUPINGS)}')


def _permutation(n: int, key: str) -> list[int]:
    """A uniform permutation of range(n), the same everywhere: each item draws 256 bits by hashing
    the key with its own index, and the draws are sorted."""
    return sorted(range(n), key=lambda i: hashlib.sha256(f"{key}/{i}".encode()).digest())
