"""The study of what the null option takes."""

from __future__ import annotations

import pytest

from minise.methods.sample import Sample
from tools.studies.null_option import by_presence, interval


def sample(name: str, fact: str, *groups: tuple[list[int], list[float], float]) -> Sample:
    records = [
        {"choices": choices, "probabilities": p, "null": null, "trial": 0, "tokens": 1}
        for choices, p, null in groups
    ]
    p = [0.25] * 4
    return Sample(name, 0, "h", 1, 0, p, p, 1, groups=records, cluster=fact)


def test_groups_are_told_apart_by_whether_they_hold_the_right_choice() -> None:
    """Choice 1 is right."""
    one = sample("a", "x", ([0, 1], [0.3, 0.5], 0.2), ([2, 3], [0.1, 0.2], 0.7))
    two = sample("b", "x", ([1, 3], [0.1, 0.3], 0.6), ([0, 2], [0.6, 0.1], 0.3))
    cells = by_presence([one, two])
    assert cells == {
        True: [[(0.2, False), (0.6, True)]],
        False: [[(0.7, True), (0.3, False)]],
    }


def test_the_interval_is_over_facts() -> None:
    """All groups of a fact are drawn together: with one fact there is no spread."""
    assert interval([[(0.2, False), (0.6, True)]], 0) == "40.0 [40.0, 40.0]"
    assert interval([[(0.2, False), (0.6, True)]], 1) == "50.0 [50.0, 50.0]"
    mean, bounds = interval([[(0.0, False)]] * 20 + [[(1.0, True)]] * 20, 0).split(" ", 1)
    low, high = (float(x) for x in bounds.strip("[]").split(", "))
    assert mean == "50.0"
    assert (low, high) == pytest.approx((35, 65), abs=3)  # 50 +- 1.96 * 50 / sqrt(40)
