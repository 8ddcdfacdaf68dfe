"""The groups of the authors' released code: independent draws (docs/paper.md)."""

from __future__ import annotations

import random

from minise.grouping import Groups


def independent_draws(K: int, m: int, trials: int, seed: int, question_id: str) -> Groups:
    """The released code's grouping: each trial is one draw of m choices. A choice may be drawn
    rarely or never. With an empty question_id all questions get the same draws, as in that code."""
    # The generator of the released code, so that the seed 0 gives the same groups of indices.
    generator = random.Random(f"{seed}/{question_id}" if question_id else seed)
    draws = [tuple(generator.sample(range(K), min(m, K))) for _ in range(trials)]
    return Groups(tuple((group,) for group in draws), independent=True)
