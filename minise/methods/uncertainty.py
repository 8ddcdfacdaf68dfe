"""How far the scores of an ensemble may be from those of infinitely many trials."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice

import torch
from torch import Tensor

from minise.grouping import Groups
from minise.method import Answer


@dataclass(frozen=True, eq=False)
class Uncertainty:
    """standard_errors: (K,) float64, one for each choice's score. lead: the predicted choice's
    score minus the second highest score. lead_error: the standard error of that difference. The
    errors are None where the trials cannot show them."""

    standard_errors: Tensor | None
    lead: float
    lead_error: float | None


def uncertainty(groups: Groups, answer: Answer) -> Uncertainty:
    """The sampling error of an answer's scores, from the spread over its trials.

    Where the trials are independent and each holds every choice, every choice has one probability
    per trial, and the error of their mean is their standard deviation / sqrt(N). Where nothing was
    sampled it is 0. It is unknown for a single trial; for trials that were chosen together
    ("balanced"); and where a trial holds only some of the choices.
    """
    K, N = len(answer.scores), len(groups.trials)
    first, second = sorted(range(K), key=lambda i: (-float(answer.scores[i]), i))[:2]
    lead = float(answer.scores[first] - answer.scores[second])
    if groups.complete:
        return Uncertainty(torch.zeros(K, dtype=torch.float64), lead, 0.0)
    whole = all(sum(map(len, trial)) == K for trial in groups.trials)
    if not (groups.independent and whole) or N < 2:
        return Uncertainty(None, lead, None)
    values_NK = torch.empty(N, K, dtype=torch.float64)
    results = iter(answer.groups)
    for number, trial in enumerate(groups.trials):
        for group in islice(results, len(trial)):
            values_NK[number, list(group.choices)] = group.probabilities
    errors = values_NK.std(dim=0) / N**0.5
    lead_error = (values_NK[:, first] - values_NK[:, second]).std() / N**0.5
    return Uncertainty(errors, lead, float(lead_error))
