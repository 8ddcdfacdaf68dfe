"""The draws of the authors' released code."""

from __future__ import annotations

from collections import Counter

from minise.groupings.independent import independent_draws
from tests.support.groupings import flat


def test_independent_draws_are_the_released_codes() -> None:
    """The paper's 20 draws of 4 of 8 with seed 0 cover A...H 11, 6, 8, 10, 14, 10, 8, 13 times."""
    draws = flat(8, 4, 20, seed=0, key="", grouping="independent")
    assert all(len(set(draw)) == 4 for draw in draws)
    coverage = Counter(choice for draw in draws for choice in draw)
    assert [coverage[choice] for choice in range(8)] == [11, 6, 8, 10, 14, 10, 8, 13]
    assert draws != flat(8, 4, 20, seed=0, key="q", grouping="independent")


def test_the_draws_of_a_question_are_fixed_and_independent() -> None:
    groups = independent_draws(8, 4, 3, 0, "q")
    assert groups.trials == (((4, 2, 5, 0),), ((3, 0, 7, 6),), ((0, 6, 3, 1),))
    assert groups.independent
    assert not groups.complete
