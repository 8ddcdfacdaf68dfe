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
from minise.lm import Prompts
from minise.method import Answer, Group, combine
from minise.methods.fitted import Fitted, Row, remade


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
        answer = combine(len(row["scores"]), groups)
        new = remade(row, answer.probabilities.tolist())
        new["prediction"] = answer.prediction
        new["scores"] = answer.scores.tolist()
        new["tokens"] = records[-1]["tokens"]
        return new


def group_records(answer: Answer, prompts: Prompts, engine: str) -> list[dict[str, Any]]:
    """The result of each prompt, as answers keep it. `tokens`: those of this prompt and of all
    before it. An answer may have fewer groups than there are prompts: the texts of cloze are read
    at many."""
    records = []
    for group, tokens in zip(answer.groups, tokens_so_far(prompts, engine), strict=False):
        record = {
            "choices": list(group.choices),
            "probabilities": group.probabilities.tolist(),
            "null": group.null,
            "trial": group.trial,
            "tokens": tokens,
        }
        records.append(record)
    return records


def tokens_so_far(prompts: Prompts, engine: str) -> list[int]:
    """For each prompt how many tokens an engine runs for it and all prompts before it."""
    if engine == "separate":
        return list(accumulate(len(prompts.prefix) + len(branch) for branch in prompts.branches))
    layout = pack(prompts.prefix, prompts.branches, tree=engine == "tree")
    # Rows are numbered in the order in which they are added: so far there are as many as the
    # largest end, plus one.
    return (layout.ends.cummax(0).values + 1).tolist()
