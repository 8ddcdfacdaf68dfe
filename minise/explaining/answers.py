"""Answers as the page shows them: rounded, and as they form, trial by trial."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate

from minise.explaining.data import AnswerPart
from minise.method import Answer, Plan, combine
from minise.methods.uncertainty import standard_errors

_DIGITS = 6  # of probabilities


def answer_part(plan: Plan, answer: Answer) -> AnswerPart:
    """The answer to a plan as it forms, trial by trial."""
    running, errors, groups, K = [], [], plan.groups, len(plan.question.choices)
    ends = [*accumulate(map(len, groups.trials))]
    for number, end in enumerate(ends, 1):
        # The first trials of a complete grouping are not complete.
        complete = groups.complete and number == len(ends)
        so_far = replace(groups, trials=groups.trials[:number], complete=complete)
        mean = combine(K, answer.groups[:end], plan.dtype)
        error = standard_errors(so_far, mean)
        running.append(rounded(mean.scores.tolist()))
        errors.append(None if error is None else rounded(error.tolist()))
    return {
        "prediction": answer.prediction,
        "probabilities": rounded(answer.probabilities.tolist()),
        "running": running,
        "errors": errors,
    }


def rounded(values: list[float]) -> list[float]:
    """The values with as many digits as the page shows."""
    return [round(value, _DIGITS) for value in values]


def rounded_null(value: float | None) -> float | None:
    """The probability of the null option, rounded; None where there is none."""
    return None if value is None else round(value, _DIGITS)
