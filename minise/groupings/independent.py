"""The groups of the authors' released code: independent draws (docs/paper.md)."""

from __future__ import annotations

import random

from minise.grouping import Groups


def independent_draws(K: int, m: int, trials: int, seed: int, question_id: str) -> Groups:
    """The released code's: each trial is one draw of m choices. A choice may come up seldom or
    never. With an empty question_id all questions get the same draws, as they do there."""
    # Its own generator, so that seed 0 gives its index sets.
    generator = random.Random(f"{seed}/{question_id}" if question_id else seed)
    drawn = ((tuple(generator.sample(range(K), min(m, K))),) for _ in range(trials))
    return Groups(tuple(drawn), independent=True)
