"""Intervals by fact, for the studies: a resample draws all questions about a fact together."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from minise.evaluation.metrics import wilson_interval

RESAMPLES = 1000

Array = NDArray[np.float64]


def share_interval(shares: ArrayLike, facts: Sequence[str]) -> Array:
    """`mean_interval` of numbers from 0 to 1. Where their mean is 0 or 1 all resamples are equal;
    there it is the Wilson interval of the facts."""
    bounds, n = mean_interval(shares, facts), len(set(facts))
    mean = np.asarray(shares, dtype=np.float64).mean(axis=0)
    for end in (0, 1):
        bounds[:, mean == end] = np.array(wilson_interval(end, n))[:, None]
    return bounds


def mean_interval(values: ArrayLike, facts: Sequence[str]) -> Array:
    """The 95% interval (2, ...) of the mean of values (n, ...), of questions about these n facts: a
    percentile bootstrap."""
    values = np.asarray(values, dtype=np.float64)
    sizes = resampled_sums(np.ones(len(values)), facts)
    means = resampled_sums(values, facts) / sizes.reshape(-1, *[1] * (values.ndim - 1))
    bounds: Array = np.quantile(means, [0.025, 0.975], axis=0)
    return bounds


def resampled_sums(values: ArrayLike, facts: Sequence[str]) -> Array:
    """The sums (RESAMPLES, ...) of values (n, ...), of questions about these n facts, in resamples
    of the facts."""
    values = np.asarray(values, dtype=np.float64)
    number = {fact: place for place, fact in enumerate(dict.fromkeys(facts))}
    sums = np.zeros((len(number), *values.shape[1:]))
    np.add.at(sums, [number[fact] for fact in facts], values)
    return resampled(sums)


def resampled(sums: Array) -> Array:
    """The same from sums of each fact (F, ...)."""
    draws = np.random.default_rng(0).integers(len(sums), size=(RESAMPLES, len(sums)))
    totals: Array = sums[draws].sum(axis=1)
    return totals
