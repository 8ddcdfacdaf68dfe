"""Methods that ask no model: they are fitted on the answers of other methods."""

from typing import Any, ClassVar

Row = dict[str, Any]  # an answer, as an evaluation saves it: a line of a samples file


class Fitted:
    """A method that makes its answers from those of other methods of the same run.

    It needs a `name`, the names of those methods in `needs`, and a `fit`. If it is a dataclass, its
    fields are its settings, as for `Method`.
    """

    name: ClassVar[str]
    needs: tuple[str, ...] = ()

    def fit(self, answers: dict[str, list[Row]]) -> list[Row]:
        """An answer to each question. `answers` has those of each method in `needs`, by its name,
        all in the same order of questions; the result is in this order too. Raises Unsuited where
        it cannot be fitted, also where a fit does not converge."""
        raise NotImplementedError


def remade(row: Row, probabilities: list[float]) -> Row:
    """The answer with other probabilities, computed without a model. Its tokens stay. What belongs
    to the answer before is left out."""
    kept = ("id", "seed", "cluster", "question_hash", "answer", "tokens", "question", "choices")
    best = probabilities.index(max(probabilities))
    new = {"prediction": best, "probabilities": probabilities, "scores": probabilities}
    return {name: row[name] for name in kept if name in row} | new
