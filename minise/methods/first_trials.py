"""Fewer trials of Self-Ensemble, from the answers of a run with more.

A random trial does not depend on how many there are. So the first N of 80 trials are a run with N
trials, and one run gives a whole column of the paper's table of m against N.
"""

from dataclasses import dataclass
from itertools import accumulate
from typing import Any, ClassVar

import torch

from minise.errors import InputError
from minise.layout import pack
from minise.method import Answer, Group, Plan, combine
from minise.methods.fitted import Fitted, Row, remade
from minise.question import Question


@dataclass(frozen=True)
class FirstTrials(Fitted):
    """The first `trials` trials of the method `of`, as it is named in the run: Self-Ensemble with
    at least as many trials, and with random or independent groups."""

    name: ClassVar[str] = "first-trials"
    of: str = "self-ensemble"
    trials: int = 20

    @property
    def needs(self) -> tuple[str, ...]:  # type: ignore[override]
        return (self.of,)

    def fit(self, answers: dict[str, list[Row]]) -> list[Row]:
        """The answers of a run with fewer trials, from the groups in the answers of `of`."""
        return [self._shortened(row) for row in answers[self.of]]

    def _shortened(self, row: Row) -> Row:
        records = [record for record in row["groups"] if record["trial"] < self.trials]
        if len({record["trial"] for record in records}) < self.trials:
            raise InputError(f"{self.of} has fewer than {self.trials} trials; give it more")
        groups = []
        for record in records:
            p = torch.tensor(record["probabilities"], dtype=torch.float64)
            groups.append(Group(tuple(record["choices"]), p, record["null"]))
        # Only the number of choices counts here.
        answer = combine(Question("-", ["-"] * len(row["scores"])), groups)
        new = remade(row, answer.probabilities.tolist())
        best, scores = answer.prediction, answer.scores.tolist()
        return new | {"prediction": best, "scores": scores, "tokens": records[-1]["tokens"]}


def group_records(plan: Plan, answer: Answer, engine: str) -> list[dict[str, Any]]:
    """The result of each prompt, as answers keep it. `tokens`: those of this prompt and of all
    before it. An answer may have fewer groups than the plan has prompts, if the last prompts serve
    another purpose."""
    trials = [number for number, trial in enumerate(plan.groups.trials) for _ in trial]
    return [
        {
            "choices": list(group.choices),
            "probabilities": group.probabilities.tolist(),
            "null": group.null,
            "trial": trial,
            "tokens": tokens,
        }
        for group, trial, tokens in zip(
            answer.groups, trials, tokens_so_far(plan, engine), strict=False
        )
    ]


def tokens_so_far(plan: Plan, engine: str) -> list[int]:
    """For each prompt of a plan how many tokens an engine runs for it and all prompts before it."""
    if engine == "separate" and plan.layout is None:
        return list(accumulate(len(plan.prefix) + len(ids) for ids in plan.branches))
    layout = plan.layout or pack(plan.prefix, plan.branches, tree=engine == "tree")
    # Rows are numbered in the order in which they are added: so far there are as many as the
    # largest end, plus one.
    return [int(row) + 1 for row in layout.ends.cummax(0).values]
