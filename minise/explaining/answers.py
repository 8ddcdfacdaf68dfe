"""Answers as the page shows them: rounded, and as they form, trial by trial."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch

from minise.explaining.data import AnswerPart
from minise.method import Answer, Group, Plan, combine

_DIGITS = 6  # of probabilities


def answer_part(plan: Plan, answer: Answer) -> AnswerPart:
    """The answer to a plan as it forms, trial by trial."""
    sizes = [len(trial) for trial in plan.groups.trials]
    running, errors = [], []
    for number, end in enumerate(accumulate(sizes), 1):
        groups = answer.groups[:end]
        running.append(rounded(combine(plan.question, groups).scores.tolist()))
        errors.append(standard_errors(groups, sizes[:number], len(plan.question.choices)))
    return {
        "prediction": answer.prediction,
        "probabilities": rounded(answer.probabilities.tolist()),
        "running": running,
        "errors": errors,
    }


def standard_errors(groups: Sequence[Group], sizes: Sequence[int], K: int) -> list[float] | None:
    """The standard error of each choice's score over N trials of so many groups: the standard
    deviation of its probability in a trial / sqrt(N). None for one trial, and where a trial holds
    only some of the choices."""
    values_NK = torch.full((len(sizes), K), torch.nan, dtype=torch.float64)
    results = iter(groups)
    for values, size in zip(values_NK, sizes, strict=True):
        for group in (next(results) for _ in range(size)):
            values[list(group.choices)] = group.probabilities
    if len(sizes) < 2 or values_NK.isnan().any():
        return None
    return rounded((values_NK.std(dim=0) / len(sizes) ** 0.5).tolist())


def rounded(values: list[float]) -> list[float]:
    """The values with as many digits as the page shows."""
    return [round(value, _DIGITS) for value in values]


def rounded_null(value: float | None) -> float | None:
    """The probability of the null option, rounded; None where there is none."""
    return None if value is None else round(value, _DIGITS)
