"""What an evaluation keeps of one answer: a line of a samples file."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from sys import float_info
from typing import Any

from minise.errors import quote
from minise.files import json_text


@dataclass(frozen=True)
class Sample:
    """One question under one method and seed."""

    id: str
    seed: int
    question_hash: str  # of its text and choices
    answer: int | None  # the index of the right choice; None if it is not known
    prediction: int  # the index of a choice
    probabilities: list[float]  # one for each choice
    scores: list[float]  # one for each choice
    tokens: int  # what the method's engine runs for this question alone
    seconds: float | None = None  # None for a method that asks no model
    logits: list[float] | None = None  # of the labels, if one prompt lists all choices
    groups: list[dict[str, Any]] | None = None  # each prompt's probabilities, if the run keeps them
    notes: dict[str, Any] | None = None  # whatever else the method keeps (JSON)
    text: dict[str, Any] | None = None  # question, choices and answer, for people
    cluster: str | None = None  # what the question is about, if several are about one thing

    def remade(self, probabilities: list[float]) -> Sample:
        """The sample with other probabilities, computed without a model. Its tokens stay. Seconds,
        logits, groups and notes belong to the answer before, and become None."""
        best = probabilities.index(max(probabilities))
        new = replace(self, prediction=best, probabilities=probabilities, scores=probabilities)
        return replace(new, seconds=None, logits=None, groups=None, notes=None)

    @property
    def key(self) -> tuple[int, str]:
        """Seed and question id, which are unique in a file."""
        return self.seed, self.id

    def problem(self) -> str:
        """What is wrong with the values of this sample, in words; empty if nothing is."""
        p, K = self.probabilities, len(self.scores)
        answer = 0 if self.answer is None else self.answer
        whole = (self.seed, answer, self.prediction, self.tokens)
        names = (self.id, self.question_hash, self.cluster or "")
        if not (all(type(name) is str for name in names) and all(map(_whole, whole))):
            texts = "id, question_hash and cluster must be text"
            return f"{texts}; seed, answer, prediction, tokens integers"
        if not (0 <= answer < K and 0 <= self.prediction < K):
            return f"answer {self.answer} and prediction {self.prediction} must be choices"
        for numbers in (p, self.scores, self.logits):
            if not (numbers is None or (_numbers(numbers) and len(numbers) == K)):
                return f"{quote(numbers)} must be a finite number for each of {K} choices"
        if min(p) < 0 or abs(sum(p) - 1) > 1e-6:
            return f"the probabilities {quote(p)} must sum to 1"
        if not (_numbers([self.seconds or 0]) and isinstance(self.notes, (dict, type(None)))):
            return "seconds must be a number, notes an object"
        if self.text is not None:
            words = [self.text["question"], *self.text["choices"]]
            if len(words) != K + 1 or not all(isinstance(text, str) for text in words):
                return f"text must hold a question and {K} choices"
        for group in self.groups or ():
            choices, shares = group["choices"], group["probabilities"]
            facts = (group["trial"], group["tokens"], *choices)
            are_choices = all(map(_whole, facts)) and all(0 <= choice < K for choice in choices)
            if not (are_choices and _numbers([*shares, group["null"] or 0])):
                return f"the group {quote(group)} must hold choices and numbers"
            if len(shares) != len(choices):
                return f"the group {quote(group)} must hold a probability for each choice"
        return ""

    def line(self) -> str:
        """The sample as a line of its file. JSON keeps every bit of a float. Fields that are None
        are left out, except `answer`."""
        values = vars(self).items()
        fields = {name: value for name, value in values if value is not None or name == "answer"}
        return json_text(fields, ensure_ascii=False) + "\n"


def _whole(value: Any) -> bool:
    return type(value) is int and abs(value) < 2**63


def _numbers(values: Iterable[Any]) -> bool:
    """Whether all are finite numbers. (Written so that NaN fails too.)"""
    return all(type(x) in (int, float) and abs(x) <= float_info.max for x in values)
