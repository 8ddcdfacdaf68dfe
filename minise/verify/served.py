"""Compare a model that runs elsewhere with the same weights here, by the answers to some questions.

A server computes in its own dtype and batches, so bits differ. The distance of probabilities must
be small: with a wrong tokenizer, template or checkpoint it is not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from minise.engines import LanguageModel
from minise.method import Method, label_logits
from minise.question import Question

MOST = 0.1  # difference of a label's probability, averaged over the prompts


@dataclass(frozen=True)
class Distance:
    """Differences of probabilities. label: the largest of a label in a prompt; mean: the mean over
    the prompts of each one's largest. choice: the largest of a choice after the mean over groups.
    labels, choices: how many prompts, and questions, have another most probable one."""

    questions: int
    prompts: int
    label: float
    mean: float
    choice: float
    labels: int
    choices: int

    @property
    def passed(self) -> bool:
        return self.mean <= MOST

    def __str__(self) -> str:
        verdict = "passed" if self.passed else f"FAILED: the average is above {MOST}"
        return (
            f"{self.questions} questions, {self.prompts} prompts: a label's probability differs by "
            f"{self.label:.2g} at most ({self.mean:.2g} on average over prompts), a choice's by "
            f"{self.choice:.2g};\nanother label comes first in {self.labels} prompts, another "
            f"choice in {self.choices} questions.\n{verdict}"
        )


def distance(
    served: LanguageModel, local: LanguageModel, method: Method, questions: Sequence[Question]
) -> Distance:
    """How far a model that runs elsewhere is from the same one here."""
    plans = [method.plan(local, question) for question in questions]
    logits = [[label_logits(lm, plan) for plan in plans] for lm in (served, local)]
    answers = [[*map(method.answer, plans, rows)] for rows in logits]
    prompts = [[row.softmax(dim=-1) for rows in one for row in rows] for one in logits]
    label, choice = (
        [float((a - b).abs().max()) for a, b in zip(*both, strict=True)]
        for both in (prompts, [[one.probabilities for one in of] for of in answers])
    )
    labels = sum(int(p.argmax()) != int(q.argmax()) for p, q in zip(*prompts, strict=True))
    choices = sum(a.prediction != b.prediction for a, b in zip(*answers, strict=True))
    sizes = len(plans), len(label), max(label), sum(label) / len(label), max(choice)
    return Distance(*sizes, labels, choices)
