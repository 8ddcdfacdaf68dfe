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
    """The first `trials` of the variant `of`, which is Self-Ensemble with the same group size, at
    least as many trials, and groups that are nested: "random" or "independent"."""

    name: ClassVar[str] = "first-trials"
    of: str
    group_size: int = 4
    trials: int = 20

    def __post_init__(self) -> None:
        object.__setattr__(self, "needs", (self.of,))  # it is frozen

    def fit(self, samples: dict[str, list[Sample]]) -> list[Sample]:
        """Samples of a run with fewer trials, from those of `of` and the groups that they keep."""
        return [self._shortened(sample) for sample in samples[self.of]]

    def _shortened(self, sample: Sample) -> Sample:
        kept = [group for group in sample.groups or [] if group["trial"] < self.trials]
        if len({group["trial"] for group in kept}) < self.trials:
            raise InputError(f"{self.of} has fewer than {self.trials} trials; give it more")
        p = [torch.tensor(group["probabilities"], dtype=torch.float64) for group in kept]
        groups = [Group(tuple(g["choices"]), q, g["null"]) for g, q in zip(kept, p, strict=True)]
        answer = combine(len(sample.scores), groups)
        scores, tokens = answer.scores.tolist(), kept[-1]["tokens"]
        new = sample.remade(answer.probabilities.tolist())
        return replace(new, prediction=answer.prediction, scores=scores, tokens=tokens)


def group_records(plan: Plan, answer: Answer, engine: str) -> list[dict[str, Any]]:
    """What each prompt said, as samples keep it. `tokens`: of this prompt and those before it. An
    answer may leave the last prompts out, if they were asked for another purpose."""
    trials = [number for number, trial in enumerate(plan.groups.trials) for _ in trial]
    each = zip(answer.groups, trials, tokens_so_far(plan, engine), strict=False)
    return [
        {"choices": list(g.choices), "probabilities": g.probabilities.tolist(), "null": g.null}
        | {"trial": trial, "tokens": tokens}
        for g, trial, tokens in each
    ]
