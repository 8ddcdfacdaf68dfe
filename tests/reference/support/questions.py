"""Questions, label logits, and a model in a server, for the tests of methods."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from minise import LabelLogits, LocalModel, Prompts, Question
from minise.prompts import Limits
from minise.tokenizer import Tokenizer

QUESTION = Question(
    "Which is a metal?", ["oak", "wren", "zinc", "silk", "rain", "salt", "wool", "clay"], answer=2
)
OTHER = Question("Which one flies?", ["eel", "cat", "owl", "ant", "yak"], answer=2)


def read(*rows: torch.Tensor | Sequence[float]) -> list[LabelLogits]:
    """Rows of label logits as a model gives them, in which the labels have all probability."""
    logits = []
    for row in rows:
        labels = torch.as_tensor(row, dtype=torch.float64)
        logits.append(LabelLogits(labels, labels.logsumexp(dim=0)))
    return logits


@dataclass
class Served:
    """A model in a server: no decoder, no config, and log-probabilities in place of logits."""

    lm: LocalModel
    name: str = "server"
    family: str = ""
    engine: str = "separate"

    @property
    def tokenizer(self) -> Tokenizer:
        return self.lm.tokenizer

    @property
    def limits(self) -> Limits:
        return Limits(self.lm.limits.positions, self.lm.limits.vocabulary)

    def logits(self, prompts: Prompts) -> list[LabelLogits]:
        zero = torch.zeros((), dtype=torch.float64)
        return [LabelLogits(one.log_probabilities, zero) for one in self.lm.logits(prompts)]
