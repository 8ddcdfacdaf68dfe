"""Methods that ask no model: they are fitted on the samples of others."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar

from minise.errors import InputError
from minise.methods.sample import Sample
from minise.question import Question


class Fitted:
    """A method that makes its samples from those of other methods of the same run.

    `needs`: the names of these. `regularisation`: what its fit minimises, in words, where that
    matters.
    """

    name: ClassVar[str]
    needs: tuple[str, ...] = ()
    regularisation: ClassVar[str] = ""

    def check(self, questions: Sequence[tuple[int, Question]]) -> None:
        """Raise InputError for questions, with their seeds, on which it cannot be fitted."""

    def fit(self, samples: dict[str, list[Sample]]) -> list[Sample]:
        """A sample for each question, in their order, by those of each method in `needs`."""
        raise NotImplementedError


class NotConverged(RuntimeError):
    """A fit did not end at a minimum. Its probabilities are not used: an evaluation leaves the
    method out of its results and says so."""


def check_same_size(method: str, sizes: Iterable[int]) -> None:
    """Raise InputError unless all questions have the same number of choices."""
    different = set(sizes)
    if len(different) > 1:
        need = f"{method} needs the same number of choices in every question"
        seen = f"found {min(different)} to {max(different)}"
        raise InputError(f"{need}; {seen}; use --only-choices K or --cut-to K")
