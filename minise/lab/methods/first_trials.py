"""Fewer trials of Self-Ensemble, from the answers of a run with more.

A random trial does not depend on how many there are. So the first N of 80 trials are a run with N
trials, and one run gives a whole column of the paper's table of m against N.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import ClassVar

import torch

from minise.errors import InputError
from minise.lab.data.kinds import check, whole_from
from minise.lab.methods.fitted import Fitted, remade
from minise.lab.methods.groupings import all_ordered_groups
from minise.lab.methods.saved import SavedAnswer, SavedGroup
from minise.layout import pack
from minise.method import Answer, Group, Method, combine
from minise.prompts import Prompts


@dataclass(frozen=True)
class FirstTrials(Fitted):
    """The first `trials` trials of the method `of`, as it is named in the run: Self-Ensemble with
    at least as many trials, and with random or independent groups."""

    name: ClassVar[str] = "first-trials"
    of: str = "self-ensemble"
    trials: int = 20

    def __post_init__(self) -> None:
        check("trials", self.trials, whole_from(1))

    @property
    def needs(self) -> tuple[str, ...]:  # type: ignore[override]
        return (self.of,)

    def check_methods(self, methods: Mapping[str, Method | Fitted]) -> None:
        method = methods[self.of]
        trials = getattr(method, "trials", None)
        is_exact = getattr(method, "grouping", None) is all_ordered_groups
        if trials is None or is_exact or isinstance(method, Fitted):
            raise InputError(f"{self.of} has no trials; name a Self-Ensemble of the same run")
        if trials < self.trials:
            fewer = f"{self.of} has fewer than {self.trials} trials ({trials})"
            raise InputError(f"{fewer}; give it more")

    def fit(self, answers: dict[str, list[SavedAnswer]]) -> list[SavedAnswer]:
        """The answers of a run with fewer trials, from the groups in the answers of `of`."""
        return [self._shortened(answer) for answer in answers[self.of]]

    def _shortened(self, longer: SavedAnswer) -> SavedAnswer:
        if longer.groups is None:
            raise InputError(f"{self.of} keeps no groups; name a method that asks the model")
        saved = [group for group in longer.groups if group.trial < self.trials]
        if len({group.trial for group in saved}) < self.trials:
            raise InputError(f"{self.of} has fewer than {self.trials} trials; give it more")
        groups = []
        for group in saved:
            p = torch.tensor(group.probabilities, dtype=torch.float64)
            groups.append(Group(tuple(group.choices), p, group.null))
        shorter = combine(len(longer.scores), groups)
        return replace(
            remade(longer, shorter.normalized.tolist()),
            prediction=shorter.prediction,
            scores=shorter.scores.tolist(),
            tokens=saved[-1].tokens,
        )


def saved_groups(answer: Answer, prompts: Prompts, engine: str) -> list[SavedGroup]:
    """The result of each prompt, as answers keep it. An answer may have fewer groups than there are
    prompts: the texts of cloze are read at many."""
    saved = []
    for group, tokens in zip(answer.groups, tokens_so_far(prompts, engine), strict=False):
        probabilities = group.probabilities.tolist()
        saved.append(
            SavedGroup(list(group.choices), probabilities, group.null, group.trial, tokens)
        )
    return saved


def tokens_so_far(prompts: Prompts, engine: str) -> list[int]:
    """For each prompt how many tokens an engine runs for it and all prompts before it."""
    if engine == "separate":
        lengths = [len(prompts.prefix) + len(branch) for branch in prompts.branches]
        return list(accumulate(lengths))
    layout = pack(prompts.prefix, prompts.branches, tree=engine == "tree")
    # Rows are numbered in the order in which they are added: so far there are as many as the
    # largest end, plus one.
    return (layout.ends.cummax(0).values + 1).tolist()
