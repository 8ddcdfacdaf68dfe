"""How far the scores of an ensemble may be from those of infinitely many trials."""

from __future__ import annotations

from itertools import islice

import torch
from torch import Tensor

from minise.grouping import Groups
from minise.method import Answer


def standard_errors(groups: Groups, answer: Answer) -> Tensor | None:
    """The standard error (K,), float64, of each choice's score, from the spread over its trials.

    Where the trials are independent and each holds every choice, every choice has one probability
    per trial, and the error of their mean is their standard deviation / sqrt(N). Where nothing was
    sampled it is 0. None for a single trial, and where a trial holds only some of the choices.
    """
    K, N = len(answer.scores), len(groups.trials)
    if groups.complete:
        return torch.zeros(K, dtype=torch.float64)
    whole = all(sum(map(len, trial)) == K for trial in groups.trials)
    if not (groups.independent and whole) or N < 2:
        return None
    values_NK = torch.empty(N, K, dtype=torch.float64)
    results = iter(answer.groups)
    for number, trial in enumerate(groups.trials):
        for group in islice(results, len(trial)):
            values_NK[number, list(group.choices)] = group.probabilities
    return values_NK.std(dim=0) / N**0.5
