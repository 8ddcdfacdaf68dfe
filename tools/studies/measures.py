"""What confidence is worth: the measures of docs/confidence.md, of the confidence f (n,) in each
answer and whether the answer is right (n,)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from minise.lab.evaluation.metrics import matched

TAU = 0.5
BINS = 15
Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Told:
    """What a method says of n questions: p (n, K), one for each choice, and the right ones (n,).
    The answer is the choice with the largest, the lower index on a tie; f is its p."""

    p: Array
    answers: NDArray[np.int64]

    @property
    def f(self) -> Array:
        return self.p.max(axis=1)

    @property
    def right(self) -> NDArray[np.bool_]:
        return self.p.argmax(axis=1) == self.answers

    def on_one_scale(self) -> Told:
        each = np.arange(len(self.answers))  # every question is a cluster of its own
        return Told(np.exp(matched(self.p, self.answers, each)), self.answers)


def under(f: Array, right: NDArray[np.bool_], tau: float = TAU) -> float:
    return float((f[right] < tau).mean())


def over(f: Array, right: NDArray[np.bool_], tau: float = TAU) -> float:
    return float((f[~right] > tau).mean())


def gap(f: Array, right: NDArray[np.bool_]) -> float:
    return float(f.mean() - right.mean())


def in_bins(f: Array, right: NDArray[np.bool_]) -> list[tuple[int, float, float]]:
    """For each bin that has answers: how many, their mean f and their accuracy."""
    number = np.searchsorted(np.linspace(0, 1, BINS + 1)[1:-1], f)
    found = []
    for i in np.unique(number):
        inside = number == i
        found.append((int(inside.sum()), float(f[inside].mean()), float(right[inside].mean())))
    return found


def ece(f: Array, right: NDArray[np.bool_]) -> float:
    return sum(n * abs(mean - share) for n, mean, share in in_bins(f, right)) / len(f)


def debiased(f: Array, right: NDArray[np.bool_]) -> float:
    total = 0.0
    for n, mean, share in in_bins(f, right):
        if n > 1:
            total += n * ((mean - share) ** 2 - share * (1 - share) / (n - 1))
    return float(np.sqrt(max(0.0, total / len(f))))


def auroc(f: Array, right: NDArray[np.bool_]) -> float:
    hits, misses = np.sort(f[right]), np.sort(f[~right])
    below = np.searchsorted(misses, hits, "left") + np.searchsorted(misses, hits, "right")
    return float(below.sum() / 2 / (len(hits) * len(misses)))


def equal_ratio(f: Array, right: NDArray[np.bool_]) -> float:
    """under = over at the threshold where they are nearest; their mean there."""
    taus = np.unique(f)
    hits, misses = np.sort(f[right]), np.sort(f[~right])
    unders = np.searchsorted(hits, taus, "left") / len(hits)
    overs = 1 - np.searchsorted(misses, taus, "right") / len(misses)
    nearest = np.abs(unders - overs).argmin()
    return float((unders[nearest] + overs[nearest]) / 2)


def surer_half(f: Array, right: NDArray[np.bool_]) -> float:
    surest = np.argsort(-f, kind="stable")[: len(f) // 2]
    return float(right[surest].mean())


def aurc(f: Array, right: NDArray[np.bool_]) -> float:
    wrong = ~right[np.argsort(-f, kind="stable")]
    return float((wrong.cumsum() / np.arange(1, len(f) + 1)).mean())


MEASURES = {
    "under": under,
    "over": over,
    "f - accuracy": gap,
    "ECE": ece,
    "debiased": debiased,
    "AUROC": auroc,
    "equal": equal_ratio,
    "surer half": surer_half,
    "AURC": aurc,
}
IN_PERCENT = ("under", "over", "f - accuracy", "equal", "surer half")
