"""The study of balanced groupings on noise."""

from __future__ import annotations

import numpy as np

from tools.studies.noise import variances


def test_more_trials_come_nearer_to_the_expectation() -> None:
    few, many = (np.mean([variances(trials, n) for n in range(3)], axis=0) for trials in (5, 40))
    assert (few > 4 * many).all()


def test_the_draws_are_those_of_a_number() -> None:
    assert variances(5, 0) == variances(5, 0) != variances(5, 1)
