"""Compare a model that runs elsewhere with the same weights here, by the answers to some questions.

A server computes in its own dtype and batches, so bits differ. The distance of probabilities must
be small: with a wrong tokenizer, template or checkpoint it is not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from minise.engines import LanguageModel
from minise.method import Method, label_logits
from minise.question import Question

MOST = 0.1  # difference of a label's probability, averaged over the prompts


def distance(
    served: LanguageModel, local: LanguageModel, method: Method, questions: Sequence[Question]
) -> dict[str, Any]:
    """How far a model that runs elsewhere is from the same one here, in probabilities. label: the
    largest difference of a label in a prompt; mean: the mean over the prompts of each one's
    largest. choice: the largest of a choice after the mean over groups. labels, choices: how many
    prompts, and questions, have another most probable one. passed: whether `mean` is below MOST."""
    plans = [method.plan(local, question) for question in questions]
    logits = [[label_logits(lm, plan) for plan in plans] for lm in (served, local)]
    answers = [[*map(method.answer, plans, rows)] for rows in logits]
    prompts = [[row.softmax(dim=-1) for rows in one for row in rows] for one in logits]
    label, choice = (
        [float((a - b).abs().max()) for a, b in zip(*both, strict=True)]
        for both in (prompts, [[one.probabilities for one in of] for of in answers])
    )
    mean = sum(label) / len(label)
    return {
        "questions": len(plans),
        "prompts": len(label),
        "label": max(label),
        "mean": mean,
        "choice": max(choice),
        "labels": sum(int(p.argmax()) != int(q.argmax()) for p, q in zip(*prompts, strict=True)),
        "choices": sum(a.prediction != b.prediction for a, b in zip(*answers, strict=True)),
        "passed": mean <= MOST,
    }


def as_text(found: dict[str, Any]) -> str:
    """The differences in words, and the verdict."""
    verdict = "passed" if found["passed"] else f"FAILED: the average is above {MOST}"
    words = """{questions} questions, {prompts} prompts: a label's probability differs by
{label:.2g} at most ({mean:.2g} on average over prompts), a choice's by {choice:.2g};
another label comes first in {labels} prompts, another choice in {choices} questions."""
    return f"{words.format_map(found)}\n{verdict}"
