"""Which choices share a group (Section 3.2, step 1). No text, tokens or model are needed here.

A grouping is a function (K, m, trials, seed, question_id) -> Groups: K choices are split into
groups of m, `trials` times. This is the paper's. docs/extending.md has others; yours may be one.

In definition.py: `draw_groups`. Next to read: question.py, tokenizer.py, prompts.py and
template.py, which make the token ids of a group.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass

from minise.errors import InputError, quote

MOST_GROUPS = 50_000  # of one question


@dataclass(frozen=True)
class Groups:
    """The groups of one question, trial by trial. A group is the indices of its choices, in the
    order in which the prompt lists them."""

    trials: tuple[tuple[tuple[int, ...], ...], ...]

    def __post_init__(self) -> None:
        if not self.flat:
            raise InputError("a grouping gives no group; give one or more")
        for group in self.flat:
            if not group:
                raise InputError("a group has no choice; give each group one or more")
            if min(group) < 0 or len(set(group)) < len(group):
                wanted = "give each choice once, by its index from 0"
                raise InputError(f"a group has the choices {quote(group)}; {wanted}")

    @property
    def flat(self) -> list[tuple[int, ...]]:
        """All groups, trial after trial."""
        groups: list[tuple[int, ...]] = []
        for trial in self.trials:
            groups.extend(trial)
        return groups

    @property
    def trial_numbers(self) -> list[int]:
        """For each group of `flat` the number of its trial, from 0."""
        numbers: list[int] = []
        for number, trial in enumerate(self.trials):
            numbers.extend([number] * len(trial))
        return numbers

    @property
    def largest(self) -> int:
        """Choices in the largest group."""
        return max(len(group) for group in self.flat)


Grouping = Callable[[int, int, int, int, str], Groups]


def random_partitions(K: int, m: int, trials: int, seed: int, question_id: str) -> Groups:
    """The paper's grouping: each trial permutes the K choices and cuts them into consecutive groups
    of m. The last group may be smaller.

    A trial's order depends on K and (seed, question_id, trial), not on the order or number of
    questions, the process, the platform or a library's version.

    >>> random_partitions(5, 2, 2, seed=0, question_id="q1").trials
    (((3, 0), (2, 4), (1,)), ((0, 2), (3, 1), (4,)))
    """
    split = []
    for trial in range(trials):
        order = permutation(K, f"{seed}/{question_id}/{trial}")
        groups = [tuple(order[start : start + m]) for start in range(0, K, m)]
        split.append(tuple(groups))
    return Groups(tuple(split))


def permutation(n: int, key: str) -> list[int]:
    """A uniform permutation of range(n), the same on every machine: each item gets 256 bits by
    hashing the key with the item's index, and the items are sorted by these bits."""
    return sorted(range(n), key=lambda i: hashlib.sha256(f"{key}/{i}".encode()).digest())


def check_at_least_one(name: str, number: int) -> None:
    if number < 1:
        raise InputError(f"{name} {number} is below 1; give at least 1")


def check_sizes(K: int, m: int, trials: int) -> None:
    """Refuse a size or number below 1, and more than MOST_GROUPS groups, before they are made."""
    check_at_least_one("group size", m)
    check_at_least_one("number of trials", trials)
    groups = trials * math.ceil(K / m)
    if groups > MOST_GROUPS:
        what = f"{quote(trials)} trials of {K} choices in groups of {quote(m)}"
        raise InputError(f"{what} are over the limit of {MOST_GROUPS:,} groups; use fewer trials")
