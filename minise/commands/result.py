"""What a method answered, and how sure it is: the numbers that `minise ask` shows."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from statistics import mean, stdev

from minise.commands.counted import Counts
from minise.method import Answer, Method
from minise.prompts import Prompts
from minise.question import Question


@dataclass(frozen=True, eq=False)
class MethodResult:
    """What a method answered, and what it was asked. texts: of the prompts. counts: of all prompts,
    those that the method asked before these, too."""

    name: str
    method: Method
    question: Question
    answer: Answer
    prompts: Prompts
    texts: list[str]
    counts: Counts

    @property
    def choice(self) -> str:
        """The choice that it predicts."""
        return self.question.choices[self.answer.prediction]

    @property
    def trials(self) -> int:
        return len({group.trial for group in self.answer.groups})

    @property
    def largest(self) -> int:
        """Choices in the largest group."""
        return max(len(group.choices) for group in self.answer.groups)

    @cached_property  # asked for in every row of the table
    def standard_errors(self) -> list[float] | None:
        """The standard error of each choice's score; None where one has none."""
        errors = []
        for choice in range(len(self.question.choices)):
            error = standard_error(self.answer, choice)
            if error is None:
                return None
            errors.append(error)
        return errors


def standard_error(answer: Answer, choice: int) -> float | None:
    """That of a choice's score, over the prompts that list it; None where the score is not their
    plain mean, one prompt lists the choice, or no prompt was drawn."""
    values = []
    for group in answer.groups:
        if choice in group.choices:
            values.append(float(group.probabilities[group.choices.index(choice)]))
    if len(values) > len({group.trial for group in answer.groups}):
        return None  # a trial lists the choice twice: its groups are all there are, none was drawn
    # Within 1e-4, since a method may average in bfloat16.
    is_mean = len(values) > 1 and abs(answer.scores[choice] - mean(values)) <= 1e-4
    return stdev(values) / len(values) ** 0.5 if is_mean else None


def few_on_labels(share: float | None) -> str:
    """A warning where the labels have less than half of the probability; none else."""
    if share is None or share >= 0.5:
        return ""
    remedy = "try --template mmlu or paren, or chat if the weights have a chat template"
    return f"only {share:.0%} of the probability is on the labels; {remedy}"
