"""Which choices share a group (Section 3.2, step 1). No text, tokens or model are needed here.

A grouping is a function (num_choices, group_size, trials, seed, question_id) -> Groups. This file
has the paper's; others are in groupings/. A function of your own is used in the same way:
`self_ensemble(..., grouping=mine)`.

Next to read: question.py, tokenizer.py and prompt.py, which make the token ids of a group.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

from minise.errors import InputError, quote

MOST_GROUPS = 50_000  # for one question

# Indices of choices, in the order in which the prompt lists them. (`method.Group` is its result.)
Group = tuple[int, ...]
Trial = tuple[Group, ...]


@dataclass(frozen=True)
class Groups:
    """The groups of one question, trial by trial, and facts about them.

    weights: how much each group counts in the mean, in the order of `flat`; None: all the same.
    independent: the trials were drawn independently of one another, so their spread shows the
    sampling error. complete: nothing was sampled, so there is no sampling error.
    """

    trials: tuple[Trial, ...]
    weights: tuple[float, ...] | None = None
    independent: bool = False
    complete: bool = False

    @property
    def flat(self) -> list[Group]:
        """All groups, trial after trial."""
        return [group for trial in self.trials for group in trial]


Grouping = Callable[[int, int, int, int, str], Groups]


def random_partitions(K: int, m: int, trials: int, seed: int, question_id: str) -> Groups:
    """The paper's grouping: each trial permutes the K choices and cuts them into consecutive groups
    of m. The last group may be smaller.

    A trial depends on (seed, question_id, trial) and nothing else: not on the order or number of
    questions, the process, the platform or a library's version.

    >>> random_partitions(5, 2, 2, seed=0, question_id="q1").trials
    (((3, 0), (2, 4), (1,)), ((0, 2), (3, 1), (4,)))
    """
    partitions: list[Trial] = []
    for trial in range(trials):
        order = permutation(K, f"{seed}/{question_id}/{trial}")
        partitions.append(tuple(tuple(order[start : start + m]) for start in range(0, K, m)))
    return Groups(tuple(partitions), independent=True)


def make_groups(
    num_choices: int,
    group_size: int,
    trials: int,
    seed: int,
    question_id: str,
    grouping: Grouping = random_partitions,
) -> Groups:
    """The groups that a grouping returns, checked.

    Raises InputError for a size or number of trials below 1, for more than MOST_GROUPS groups, and
    for groups that `check_groups` refuses.
    """
    check_sizes(num_choices, group_size)
    if trials * -(-num_choices // group_size) > MOST_GROUPS:
        sizes = f"{num_choices} choices in groups of {quote(group_size)}"
        limit = f"over the limit of {MOST_GROUPS:,} groups"
        raise InputError(f"{quote(trials)} trials of {sizes} are {limit}; use fewer trials")
    groups = grouping(num_choices, group_size, trials, seed, question_id)
    check_groups(groups, num_choices)
    if not groups.trials:  # not before: the exact grouping needs no number of trials
        raise InputError(f"number of trials {trials} is below 1; at least one is needed")
    return groups


def check_groups(groups: Any, K: int, *_: object) -> None:
    """Raise InputError unless these are `Groups` of the choices 0 ... K - 1.

    A choice may be in no group only if the trials are independent draws, as the released code's
    are: then it is missing by chance. (A grouping from a user's file is checked with all arguments
    of its call; those after K are not needed.)
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
        are_choices = all(type(i) is int and 0 <= i < K for i in group)
        if not group or not are_choices or len(set(group)) < len(group):
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


def check_sizes(num_choices: int, group_size: int, trials: int = 1) -> None:
    """Raise InputError if a number is below 1."""
    if num_choices < 1:
        raise InputError("there are no choices to group")
    if group_size < 1:
        raise InputError(f"group size {group_size} is below 1; a group needs at least one choice")
    if trials < 1:
        raise InputError(f"number of trials {trials} is below 1; at least one is needed")


def permutation(n: int, key: str) -> list[int]:
    """A uniform permutation of range(n), the same on every machine: each item gets 256 bits by
    hashing the key with the item's index, and the items are sorted by these bits."""
    return sorted(range(n), key=lambda i: hashlib.sha256(f"{key}/{i}".encode()).digest())
