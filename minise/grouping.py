"""Which choices share a group (Section 3.2, step 1). Knows nothing of text, tokens or the model.

A grouping is a function (num_choices, group_size, trials, seed, question_id) -> Groups. The paper's
stands here, others are in groupings/. One of your own goes wherever these do:
`self_ensemble(..., grouping=mine)`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

from minise.errors import InputError, quote

MOST_GROUPS = 50_000  # of one question

Group = tuple[int, ...]  # indices of choices, in the order in which the prompt lists them
Trial = tuple[Group, ...]


@dataclass(frozen=True)
class Groups:
    """The groups of one question, trial by trial, and what is known of them.

    weights: how much each group counts in the mean, in the order of `flat`; None: all the same.
    independent: the trials were drawn independently of one another, so their spread tells the
    sampling error. complete: nothing was sampled, so there is no sampling error. balance: how
    balanced a design is, in words.
    """

    trials: tuple[Trial, ...]
    weights: tuple[float, ...] | None = None
    independent: bool = False
    complete: bool = False
    balance: str | None = None

    @property
    def flat(self) -> list[Group]:
        """All groups, trial after trial."""
        return [group for trial in self.trials for group in trial]


Grouping = Callable[[int, int, int, int, str], Groups]


def random_partitions(K: int, m: int, trials: int, seed: int, question_id: str) -> Groups:
    """The paper's: each trial permutes the K choices and cuts them into consecutive groups of m, of
    which the last may be smaller.

    A trial depends on (seed, question_id, trial) and nothing else: not on the order or number of
    questions, the process, the platform or a library's version.

    >>> random_partitions(5, 2, 2, seed=0, question_id="q1").trials
    (((3, 0), (2, 4), (1,)), ((0, 2), (3, 1), (4,)))
    """
    orders = [permutation(K, f"{seed}/{question_id}/{trial}") for trial in range(trials)]
    drawn = (tuple(tuple(o[i : i + m]) for i in range(0, K, m)) for o in orders)
    return Groups(tuple(drawn), independent=True)


def make_groups(
    num_choices: int,
    group_size: int,
    trials: int,
    seed: int,
    question_id: str,
    grouping: Grouping = random_partitions,
) -> Groups:
    """The groups by a grouping, checked.

    Raises InputError for a size or number of trials below 1, for more than MOST_GROUPS groups, and
    for groups that cannot be asked and averaged.
    """
    check_sizes(num_choices, group_size)
    if trials * -(-num_choices // group_size) > MOST_GROUPS:
        asked = f"{quote(trials)} trials of {num_choices} choices in groups of {quote(group_size)}"
        raise InputError(f"{asked} are over the limit of {MOST_GROUPS:,} groups; use fewer trials")
    groups = grouping(num_choices, group_size, trials, seed, question_id)
    check_groups(groups, num_choices)
    if not groups.trials:
        raise InputError(f"number of trials {trials} is below 1; at least one is needed")
    return groups


def check_groups(groups: Any, K: int, *_: object) -> None:
    """Raise InputError unless these are `Groups` of K choices that can be asked and averaged.

    A choice may be in no group only if the trials are independent: then it is missing by chance.
    """
    if not isinstance(groups, Groups):
        raise InputError(f"the grouping returned {type(groups).__name__}; it must return Groups")
    try:
        flat = [tuple(group) for group in groups.flat]
    except TypeError:
        raise InputError(f"trials {quote(groups.trials)} are no tuples of groups") from None
    if len(flat) > MOST_GROUPS:
        raise InputError(f"there are {len(flat):,} groups, over the limit of {MOST_GROUPS:,}")
    for group in flat:
        sound = all(type(i) is int and 0 <= i < K for i in group)
        if not group or not sound or len(set(group)) < len(group):
            wanted = f"different indices of choices, ints from 0 to {K - 1}"
            raise InputError(f"group {quote(group)} is wrong; a group has {wanted}")
    missing = sorted(set(range(K)).difference(*flat))
    if flat and missing and not groups.independent:
        raise InputError(f"no group holds choice {missing[0]}; each choice must be in a group")
    weights = groups.weights
    if weights is not None and (
        not isinstance(weights, Sequence)
        or len(weights) != len(flat)
        or not all(isinstance(w, int | float) and isfinite(w) and w > 0 for w in weights)
    ):
        wanted = f"a number above 0 for each of the {len(flat)} groups"
        raise InputError(f"weights {quote(weights)} are wrong; give {wanted}")
    if not isinstance(groups.balance, str | None):
        raise InputError(f"balance is {quote(groups.balance)}; it must be text")


def check_sizes(num_choices: int, group_size: int, trials: int = 1) -> None:
    """Raise InputError if a number is below 1."""
    if num_choices < 1:
        raise InputError("there are no choices to group")
    if group_size < 1:
        raise InputError(f"group size {group_size} is below 1; a group needs at least one choice")
    if trials < 1:
        raise InputError(f"number of trials {trials} is below 1; at least one is needed")


def permutation(n: int, key: str) -> list[int]:
    """A uniform permutation of range(n), the same everywhere: each item draws 256 bits by hashing
    the key with its own index, and the draws are sorted."""
    return sorted(range(n), key=lambda i: hashlib.sha256(f"{key}/{i}".encode()).digest())
