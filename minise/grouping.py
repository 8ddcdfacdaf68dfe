"""Which choices share a group (Section 3.2, step 1). No text, tokens or model are needed here.

A grouping is a function (K, m, trials, seed, question_id) -> Groups: K choices are split into
groups of m, `trials` times. This is the paper's. methods/groupings.py has others; yours may be one.

Next to read: question.py, tokenizer.py and prompt.py, which make the token ids of a group.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Groups:
    """The groups of one question, trial by trial. A group is the indices of its choices, in the
    order in which the prompt lists them.

    weights: how much each group counts in the mean, in the order of `flat`; None: all the same.
    """

    trials: tuple[tuple[tuple[int, ...], ...], ...]
    weights: tuple[float, ...] | None = None

    @property
    def flat(self) -> list[tuple[int, ...]]:
        """All groups, trial after trial."""
        return [group for trial in self.trials for group in trial]


Grouping = Callable[[int, int, int, int, str], Groups]


def random_partitions(K: int, m: int, trials: int, seed: int, question_id: str) -> Groups:
    """The paper's grouping: each trial permutes the K choices and cuts them into consecutive groups
    of m. The last group may be smaller.

    A trial's order depends on K and (seed, question_id, trial), not on the order or number of
    questions, the process, the platform or a library's version.

    >>> random_partitions(5, 2, 2, seed=0, question_id="q1").trials
    (((3, 0), (2, 4), (1,)), ((0, 2), (3, 1), (4,)))
    """
    orders = [permutation(K, f"{seed}/{question_id}/{trial}") for trial in range(trials)]
    return Groups(tuple(tuple(tuple(order[i : i + m]) for i in range(0, K, m)) for order in orders))


def permutation(n: int, key: str) -> list[int]:
    """A uniform permutation of range(n), the same on every machine: each item gets 256 bits by
    hashing the key with the item's index, and the items are sorted by these bits."""
    return sorted(range(n), key=lambda i: hashlib.sha256(f"{key}/{i}".encode()).digest())
