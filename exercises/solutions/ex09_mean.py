"""Exercise 9, one way to write it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def mean_scores(
    num_choices: int, groups: Sequence[Sequence[int]], probabilities: Sequence[Sequence[float]]
) -> Tensor:
    total, count = torch.zeros(2, num_choices, dtype=torch.float64)
    for group, values in zip(groups, probabilities, strict=True):
        for choice, value in zip(group, values, strict=True):
            total[choice] += value
            count[choice] += 1
    return total / count.clamp(min=1)


def standard_errors(values_NK: Tensor) -> Tensor:
    return values_NK.std(dim=0) / len(values_NK) ** 0.5
