"""Compare a model that a server runs with the same weights here, by the answers to some questions.

A server computes in its own dtype and batches, so bits differ. The distance of probabilities must
be small: with a wrong tokenizer, template or checkpoint it is not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from minise.lab.evaluation.pipeline import answers
from minise.lm import LanguageModel
from minise.method import Method
from minise.question import Asked, Question

TOLERANCE = 0.1  # of the difference of a label's probability, averaged over the prompts


@dataclass(frozen=True)
class Distance:
    """How far a served model is from the same one here, in probabilities. label: the largest
    difference of a label in a prompt; mean: the mean over the prompts of each one's largest.
    choice: the largest of a choice after the mean over groups. labels, choices: how many prompts,
    and questions, have another most probable one. passed: whether `mean` is at most TOLERANCE."""

    questions: int
    prompts: int
    label: float
    mean: float
    choice: float
    labels: int
    choices: int
    passed: bool


def distance(
    served: LanguageModel, local: LanguageModel, method: Method, questions: Sequence[Question]
) -> Distance:
    """Ask both the same questions."""
    asked = [Asked(question) for question in questions]
    labels_apart: list[float] = []  # of each prompt
    choices_apart: list[float] = []  # of each question
    other_labels = 0
    other_choices = 0
    answers_there = answers(served, method, asked)
    answers_here = answers(local, method, asked)
    for there, here in zip(answers_there, answers_here, strict=True):
        for logits_there, logits_here in zip(there.logits, here.logits, strict=True):
            p = logits_there.labels.softmax(dim=-1)
            q = logits_here.labels.softmax(dim=-1)
            labels_apart.append(float((p - q).abs().max()))
            other_labels += int(p.argmax()) != int(q.argmax())
        gap = there.answer.probabilities - here.answer.probabilities
        choices_apart.append(float(gap.abs().max()))
        other_choices += there.answer.prediction != here.answer.prediction
    mean = sum(labels_apart) / len(labels_apart)
    return Distance(
        questions=len(asked),
        prompts=len(labels_apart),
        label=max(labels_apart),
        mean=mean,
        choice=max(choices_apart),
        labels=other_labels,
        choices=other_choices,
        passed=mean <= TOLERANCE,
    )


def as_text(found: Distance) -> str:
    """The differences in words, and the verdict."""
    size = f"{found.questions} questions, {found.prompts} prompts"
    lines = [
        f"{size}: a label's probability differs by {found.label:.2g}",
        f"at most ({found.mean:.2g} on average over prompts), a choice's by {found.choice:.2g};",
        f"another label comes first in {found.labels} prompts, another choice in",
        f"{found.choices} questions",
    ]
    lines.append("passed" if found.passed else f"FAILED: the average is above {TOLERANCE}")
    return "\n".join(lines)
