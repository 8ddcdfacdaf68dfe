"""Fewer trials of Self-Ensemble, from the samples of a run with more.

A random trial does not depend on how many there are. So the first N of 80 trials are a run with N
trials, and one run gives a whole column of the paper's table of m against N.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch

from minise.errors import InputError
from minise.method import Answer, Group, Plan, combine
from minise.methods.fitted import Fitted
from minise.methods.rotations import tokens_so_far
from minise.methods.sample import Sample


@dataclass(frozen=True)
class FirstTrials(Fitted):
    """The first `trials` trials of the variant `of`: Self-Ensemble with the same group size, at
    least as many trials, and a grouping whose first trials do not depend on how many there are
    ("random" or "independent")."""

    name: ClassVar[str] = "first-trials"
    of: str
    group_size: int = 4
    trials: int = 20

    def __post_init__(self) -> None:
        object.__setattr__(self, "needs", (self.of,))  # a frozen class sets fields so

    def fit(self, samples: dict[str, list[Sample]]) -> list[Sample]:
        """The samples of a run with fewer trials, from the groups in the samples of `of`."""
        return [self._shortened(sample) for sample in samples[self.of]]

    def _shortened(self, sample: Sample) -> Sample:
        records = [record for record in sample.groups or [] if record["trial"] < self.trials]
        if len({record["trial"] for record in records}) < self.trials:
            raise InputError(f"{self.of} has fewer than {self.trials} trials; give it more")
        groups = []
        for record in records:
            p = torch.tensor(record["probabilities"], dtype=torch.float64)
            groups.append(Group(tuple(record["choices"]), p, record["null"]))
        answer = combine(len(sample.scores), groups)
        scores, tokens = answer.scores.tolist(), records[-1]["tokens"]
        new = sample.remade(answer.probabilities.tolist())
        return replace(new, prediction=answer.prediction, scores=scores, tokens=tokens)


def group_records(plan: Plan, answer: Answer, engine: str) -> list[dict[str, Any]]:
    """The result of each prompt, as samples keep it. `tokens`: those of this prompt and of all
    before it. An answer may have fewer groups than the plan has prompts, if the last prompts serve
    another purpose."""
    trials = [number for number, trial in enumerate(plan.groups.trials) for _ in trial]
    records = []
    tokens = tokens_so_far(plan, engine)
    for group, trial, so_far in zip(answer.groups, trials, tokens, strict=False):
        records.append(
            {
                "choices": list(group.choices),
                "probabilities": group.probabilities.tolist(),
                "null": group.null,
                "trial": trial,
                "tokens": so_far,
            }
        )
    return records
