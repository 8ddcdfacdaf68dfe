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


@dataclass
class Distance:
    """Differences of probabilities. label: the largest of a label in a prompt; mean: the mean over
    the prompts of each one's largest. choice: the largest of a choice after the mean over groups.
    labels, choices: how many prompts, and questions, have another most probable one."""

    questions: int = 0
    prompts: int = 0
    label: float = 0.0
    mean: float = 0.0
    choice: float = 0.0
    labels: int = 0
    choices: int = 0

    @property
    def passed(self) -> bool:
        return self.mean <= MOST

    def __str__(self) -> str:
        return (
            f"{self.questions} questions, {self.prompts} prompts: a label's probability differs by "
            f"{self.label:.2g} at most ({self.mean:.2g} on average over prompts), a choice's by "
            f"{self.choice:.2g};\nanother label comes first in {self.labels} prompts, another "
            f"choice in {self.choices} questions.\n"
            + ("passed" if self.passed else f"FAILED: the average is above {MOST}")
        )


def distance(
    served: LanguageModel, local: LanguageModel, method: Method, questions: Sequence[Question]
) -> Distance:
    """How far a model that runs elsewhere is from the same one here."""
    found = Distance()
    for question in questions:
        plan = method.plan(local, question)
        rows = [label_logits(lm, plan) for lm in (served, local)]
        for pair in zip(*rows, strict=True):
            p, q = (row.softmax(dim=-1) for row in pair)
            apart = float((p - q).abs().max())
            found.label, found.mean = max(found.label, apart), found.mean + apart
            found.prompts += 1
            found.labels += int(p.argmax()) != int(q.argmax())
        a, b = (method.answer(plan, logits) for logits in rows)
        found.choice = max(found.choice, float((a.probabilities - b.probabilities).abs().max()))
        found.questions += 1
        found.choices += a.prediction != b.prediction
    found.mean /= found.prompts
    return found
