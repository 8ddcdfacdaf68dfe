"""How far the scores of an ensemble may be from those of infinitely many trials."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from statistics import NormalDist

import torch
from torch import Tensor

from minise.grouping import Groups
from minise.method import Answer


@dataclass(frozen=True, eq=False)
class Uncertainty:
    """standard_errors: (K,) float64, one for each choice's score. lead: the predicted choice's
    score minus the second highest score. lead_error: the standard error of that difference.
    lead_interval: the 95% interval of the lead by Student's t. None where the trials cannot show
    them."""

    standard_errors: Tensor | None
    lead: float
    lead_error: float | None
    lead_interval: tuple[float, float] | None


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
        return Uncertainty(torch.zeros(K, dtype=torch.float64), lead, 0.0, (lead, lead))
    whole = all(sum(map(len, trial)) == K for trial in groups.trials)
    if not (groups.independent and whole) or N < 2:
        return Uncertainty(None, lead, None, None)
    values_NK = torch.empty(N, K, dtype=torch.float64)
    results = iter(answer.groups)
    for number, trial in enumerate(groups.trials):
        for group in islice(results, len(trial)):
            values_NK[number, list(group.choices)] = group.probabilities
    errors = values_NK.std(dim=0) / N**0.5
    lead_error = float((values_NK[:, first] - values_NK[:, second]).std() / N**0.5)
    reach = student_quantile(N - 1) * lead_error
    return Uncertainty(errors, lead, lead_error, (lead - reach, lead + reach))


def student_quantile(freedom: int, share: float = 0.975) -> float:
    """The quantile of Student's t distribution, by its expansion around the normal one (Abramowitz
    and Stegun 1964, 26.7.5). From 4 degrees of freedom on it is right to 0.2%, for 1 to 11%.
    (SciPy has it too, but `minise ask` does without.)"""
    z, n = NormalDist().inv_cdf(share), freedom
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    fourth = (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160
    return z + first / n + second / n**2 + third / n**3 + fourth / n**4
