"""Exercise 9: the mean of many groups, and how far it may be off.

Each trial splits all choices at random into groups, and each group gives its choices
probabilities. The score of a choice is the mean of its probabilities (Section 3.2 of the paper,
Eq. 2). Other random groups would give another mean. How far it moves is its standard error; the
standard deviation is something else: how far one trial moves.

Dimension legend: N trials, K choices.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def mean_scores(
    num_choices: int, groups: Sequence[Sequence[int]], probabilities: Sequence[Sequence[float]]
) -> Tensor:
    """The score of each choice, (K,) float64: the mean of its probabilities over the groups that
    hold it, 0 if none does. `groups`: the choices of each group, numbers from 0 to K - 1.
    `probabilities`: of each group, in the order of its choices.

    >>> mean_scores(3, [[0, 1], [2, 0]], [[0.5, 0.25], [0.75, 0.0]]).tolist()
    [0.25, 0.25, 0.75]
    """
    total, count = torch.zeros(2, num_choices, dtype=torch.float64)
    for group, values in zip(groups, probabilities, strict=True):
        for choice, value in zip(group, values, strict=True):
            total[choice] += value
            count[choice] += 1
    return total / count.clamp(min=1)


def standard_errors(values_NK: Tensor) -> Tensor:
    """The standard error of each choice's mean over N trials, (K,), of the same dtype.
    `values_NK`: (N, K), the probability that each trial gave each choice; the trials are
    independent, and N is at least 2.

    >>> standard_errors(torch.tensor([[0.25, 0.5], [0.75, 0.5]])).tolist()
    [0.25, 0.0]
    """
    return values_NK.std(dim=0) / len(values_NK) ** 0.5
