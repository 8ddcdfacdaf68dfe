"""Which choices share a group (Section 3.2, step 1). Knows nothing of text, tokens or the model.

A grouping is a function (num_choices, group_size, trials, seed, question_id) -> Groups. One of your
own goes wherever a grouping is named: `self_ensemble(..., grouping=mine)`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass

from minise.errors import InputError, quote
from minise.loading.plugin import find_object
from minise.methods.own import check_groups, guarded

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


# A name on the command line -> where its function is. A grouping of your own needs no entry:
# "./mine.py:name" names it as well.
GROUPINGS = {
    "random": "minise.grouping:random_partitions",
    "balanced": "minise.groupings.balanced:balanced_partitions",
    "independent": "minise.methods.authors_code:independent_draws",
    "exact": "minise.groupings.exact:all_ordered_groups",
}


def make_groups(
    num_choices: int,
    group_size: int,
    trials: int,
    seed: int,
    question_id: str,
    grouping: str | Grouping = "random",
) -> Groups:
    """The groups by a grouping: a name in GROUPINGS, "./file.py:name", or a function.

    Raises InputError for an unknown name, for a size or number of trials below 1, for more than
    MOST_GROUPS groups, and for what a grouping of the user's own does wrong.
    """
    check_sizes(num_choices, group_size)
    if trials * -(-num_choices // group_size) > MOST_GROUPS:
        asked = f"{quote(trials)} trials of {num_choices} choices in groups of {quote(group_size)}"
        raise InputError(f"{asked} are over the limit of {MOST_GROUPS:,} groups; use fewer trials")
    if isinstance(grouping, str):
        if grouping not in GROUPINGS and ":" not in grouping:
            known = ", ".join(GROUPINGS)
            raise InputError(f"grouping {quote(grouping)} is unknown; use one of {known}")
        found = find_object(GROUPINGS.get(grouping, grouping))
        grouping = found if grouping in GROUPINGS else guarded(grouping, found, check_groups)
    groups = grouping(num_choices, group_size, trials, seed, question_id)
    check_groups(groups, num_choices)
    if not groups.trials:
        raise InputError(f"number of trials {trials} is below 1; at least one is needed")
    return groups


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
