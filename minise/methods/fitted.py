"""Methods that ask no model: they are fitted on the answers of other methods."""

from typing import ClassVar

from minise.methods.saved import SavedAnswer


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
        probabilities=probabilities,
        scores=probabilities,
    )
