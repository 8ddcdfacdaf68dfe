"""A question as a run asks it."""

from dataclasses import dataclass

from minise.question import Question


@dataclass(frozen=True)
class Asked:
    """A question, and the seed of its groups."""

    question: Question
    seed: int = 0
