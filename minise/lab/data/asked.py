"""A question as a run asks it, and what a run knows of it beside."""

from dataclasses import dataclass

from minise.question import Question


@dataclass(frozen=True)
class ClusteredQuestion(Question):
    """A question that shares its subject with others. `cluster`: the name of the subject;
    confidence intervals resample its questions together."""

    cluster: str = ""


@dataclass(frozen=True)
class Asked:
    """A question, and the seed of its groups."""

    question: Question
    seed: int = 0
