"""Methods that ask no model: they are fitted on the answers of other methods."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from minise.errors import InputError, quote
from minise.lab.methods.saved import SavedAnswer
from minise.method import Method


class Fitted:
    """A method that makes its answers from those of other methods of the same run.

    It needs a `name`, the names of those methods in `needs`, and a `fit`. If it is a dataclass, its
    fields are its settings, as for `Method`.
    """

    name: ClassVar[str]
    needs: tuple[str, ...] = ()

    def fit(self, answers: dict[str, list[SavedAnswer]]) -> list[SavedAnswer]:
        """An answer to each question. `answers` has those of each method in `needs`, by its name,
        all in the same order of questions; the result is in this order too. Raises Unsuited where
        it cannot be fitted, also where a fit does not converge."""
        raise NotImplementedError

    def check_methods(self, methods: Mapping[str, Method | Fitted]) -> None:
        """Raises InputError if among the methods of a run those in `needs` are such that it can
        never be fitted on their answers. It is called before any is asked."""


def check_needs(methods: Mapping[str, Method | Fitted]) -> None:
    """Refuse methods of a run, by their names, of which one can never be fitted."""
    fitted = {}
    for name, method in methods.items():
        if isinstance(method, Fitted):
            fitted[name] = method
    in_order(fitted)
    for name, method in fitted.items():
        for need in method.needs:
            if need not in methods:
                raise InputError(f"{name} needs the method {quote(need)}; name it, too")
        method.check_methods(methods)


def in_order(methods: Mapping[str, Fitted]) -> list[str]:
    """The names of fitted methods, each after those that it needs. Raises InputError for methods
    that need each other."""
    order: list[str] = []
    while len(order) < len(methods):
        waiting = [name for name in methods if name not in order]
        ready = []
        for name in waiting:
            if not any(need in waiting for need in methods[name].needs):
                ready.append(name)
        if not ready:
            raise InputError(f"{', '.join(waiting)} need each other; leave one out")
        order += ready
    return order


def remade(answer: SavedAnswer, probabilities: list[float]) -> SavedAnswer:
    """The answer with other probabilities, computed without a model. Its tokens stay. What belongs
    to the answer before is left out."""
    return SavedAnswer(
        id=answer.id,
        seed=answer.seed,
        cluster=answer.cluster,
        question_hash=answer.question_hash,
        answer=answer.answer,
        tokens=answer.tokens,
        question=answer.question,
        choices=answer.choices,
        prediction=probabilities.index(max(probabilities)),
        scores=probabilities,
        normalized=probabilities,
    )
