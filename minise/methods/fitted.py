"""Methods that ask no model: they are fitted on the samples of other methods."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar

from minise.errors import InputError
from minise.methods.sample import Sample
from minise.question import Question


class Fitted:
    """A method that makes its samples from those of other methods of the same run.

    It needs a `name`, the names of those methods in `needs`, and a `fit`. Everything else has the
    default that stands here. If it is a dataclass, its fields are its settings, as for `Method`.
    `regularisation`: what the fit minimises, in words, for methods where that matters.
    """

    name: ClassVar[str]
    needs: tuple[str, ...] = ()
    regularisation: ClassVar[str] = ""

    def check(self, questions: Sequence[tuple[int, Question]]) -> None:
        """Raise InputError if the method cannot be fitted on these (seed, question) pairs. It is
        called once, before any question is run."""

    def fit(self, samples: dict[str, list[Sample]]) -> list[Sample]:
        """A sample for each question. `samples` has the samples of each method in `needs`, by its
        name, all in the same order of questions; the result is in this order too."""
        raise NotImplementedError


class NotConverged(RuntimeError):
    """A fit did not reach a minimum. Its probabilities are not used: an evaluation leaves the
    method out of its results and reports that."""


def check_same_size(method: str, sizes: Iterable[int]) -> None:
    """Raise InputError unless all questions have the same number of choices."""
    different = set(sizes)
    if len(different) > 1:
        need = f"{method} needs the same number of choices in every question"
        numbers = f"found {min(different)} to {max(different)}"
        raise InputError(f"{need}; {numbers}; use --only-choices K or --cut-to K")
