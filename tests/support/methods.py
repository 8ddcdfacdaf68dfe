"""Questions, methods by their names, and a served model, for the tests of methods/."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from minise import LabelLogits, LanguageModel, LocalModel, Method, Prompts, Question
from minise import ask as ask_method
from minise.lab.methods.registry import make_method
from minise.lm import Limits
from minise.method import GroupPlan
from minise.tokenizer import Tokenizer

QUESTION = Question(
    "Which is a metal?", ["oak", "wren", "zinc", "silk", "rain", "salt", "wool", "clay"], answer=2
)
OTHER = Question("Which one flies?", ["eel", "cat", "owl", "ant", "yak"], answer=2)
SIZES = {"group_size": 3, "trials": 4}


def method(name: str, **settings: Any) -> Method:
    """The method that a user writes so, or its class with these settings."""
    made = make_method(name, settings)[1]
    assert isinstance(made, Method)
    return made


def ask(
    lm: LocalModel, name: str, question: Question, engine: str = "tree", **settings: Any
) -> torch.Tensor:
    model = lm.with_engine(engine)
    return ask_method(model, method(name, **settings), question, 3).probabilities


def prompts(
    lm: LanguageModel, name: str, question: Question, seed: int = 3, **settings: Any
) -> Prompts:
    """What a method asks the model."""
    _, asked = method(name, **settings).prompts(lm, question, seed)
    return asked


def groups(
    lm: LanguageModel, one: Method, question: Question, seed: int = 0
) -> list[tuple[int, ...]]:
    """The groups that a method asks for."""
    plan, _ = one.prompts(lm, question, seed)
    assert isinstance(plan, GroupPlan)
    return plan.groups.flat


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
