"""The lines of a samples file: the answers of one method to one task (docs/evaluation.md)."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from minise.commands.result import standard_error
from minise.errors import quote
from minise.lab.data.asked import Asked, ClusteredQuestion
from minise.lab.data.kinds import from_object, with_parts
from minise.lab.evaluation.lines import read_lines
from minise.lab.evaluation.pipeline import Answered
from minise.lab.methods.first_trials import saved_groups
from minise.lab.methods.noted import NotedAnswer
from minise.lab.methods.saved import SavedAnswer, SavedGroup

Key = tuple[int, str, str, int | None]  # seed, id, question_hash, answer
# The fields of a line in their order: of an answer that a model gave, and of one that was made from
# others.
GIVEN = (
    *("id", "seed", "cluster", "question_hash", "answer", "prediction", "scores", "normalized"),
    *("label", "logits", "on_labels", "null", "error", "tokens", "seconds"),
    *("peak_bytes", "groups", "notes", "question", "choices"),
)
REMADE = (
    *("id", "seed", "cluster", "question_hash", "answer", "tokens", "question", "choices"),
    *("prediction", "scores", "normalized"),
)
WHERE_KEPT = ("peak_bytes", "groups", "notes", "question", "choices")  # others may be null


@dataclass(frozen=True)
class LeftOut:
    """A question to which there is no answer, and why. Its line stands where that of its answer
    would."""

    id: str
    seed: int
    question_hash: str
    answer: int | None
    left_out: str


@dataclass(frozen=True)
class Keep:
    """What a line has only where it is asked for. groups: the result of each prompt. text: of the
    question and its choices, and what a model writes."""

    groups: bool = False
    text: bool = False


def saved(
    answered: Answered, keep: Keep, engine: str, peak_bytes: int | None = None
) -> SavedAnswer:
    """What is kept of an answer that a model gave by this engine."""
    question = answered.asked.question
    answer = answered.answer
    label = None
    if len(answer.groups) == 1 and answer.prediction in answer.groups[0].choices:
        label = answer.groups[0].choices.index(answer.prediction)
    logits = None
    if answer.on_labels is not None:
        logits = answered.logits[0].labels.tolist()
    notes = dict(answer.notes) if isinstance(answer, NotedAnswer) else {}
    if not keep.text:
        notes.pop("reasoning", None)
    return SavedAnswer(
        id=question.id,
        seed=answered.asked.seed,
        cluster=question.cluster if isinstance(question, ClusteredQuestion) else None,
        question_hash=question.content_hash,
        answer=question.answer,
        prediction=answer.prediction,
        scores=answer.scores.tolist(),
        normalized=answer.normalized.tolist(),
        label=label,
        logits=logits,
        on_labels=answer.on_labels,
        null=answer.null,
        error=standard_error(answer, answer.prediction),
        tokens=answered.tokens,
        seconds=answered.seconds,
        peak_bytes=peak_bytes,
        groups=saved_groups(answer, answered.prompts, engine) if keep.groups else None,
        notes=notes or None,
        question=question.text if keep.text else None,
        choices=list(question.choices) if keep.text else None,
    )


def key_of(answer: SavedAnswer | LeftOut) -> Key:
    """Which question it answers."""
    return answer.seed, answer.id, answer.question_hash, answer.answer


def key_of_question(asked: Asked) -> Key:
    """The same, of a question that is to be answered."""
    question = asked.question
    return asked.seed, question.id, question.content_hash, question.answer


def beginning(asked: Asked) -> str:
    """How the line of a question begins."""
    return json.dumps({"id": asked.question.id})[:-1]


def line_of(answer: SavedAnswer) -> dict[str, Any]:
    """The answer as its line has it."""
    line = {}
    for name in REMADE if answer.seconds is None else GIVEN:
        value = getattr(answer, name)
        if name == "groups" and value is not None:
            value = [asdict(group) for group in value]
        if value is not None or name not in WHERE_KEPT:
            line[name] = value
    return line


def row_of(line: Any) -> SavedAnswer | LeftOut:
    """What a line holds. Raises InputError for what is neither."""
    if isinstance(line, dict) and "left_out" in line:
        return from_object(LeftOut, line)
    return answer_of(line)


def answer_of(line: Any) -> SavedAnswer:
    """The answer that a line holds. Raises InputError for what is none."""
    return from_object(SavedAnswer, with_parts(line, "groups", SavedGroup))


def read_rows(path: Path) -> list[SavedAnswer | LeftOut]:
    """The answers of a file and the questions that were left out, none if there is no file. Raises
    InputError for a line that is no answer."""
    return read_lines(path, row_of)


def left_out(asked: Asked, why: str) -> LeftOut:
    """A question to which a model gives no answer."""
    question = asked.question
    return LeftOut(question.id, asked.seed, question.content_hash, question.answer, why)


def left_out_words(rows: Sequence[SavedAnswer | LeftOut], most: int = 5) -> str:
    """How many questions are left out, which, and why the first; empty if none is."""
    missing = [row for row in rows if isinstance(row, LeftOut)]
    if not missing:
        return ""
    names = [quote(row.id, 40) for row in missing[:most]]
    if len(missing) > most:
        names.append("...")
    of = f"{len(missing):,} of {len(rows):,} questions are left out ({', '.join(names)})"
    return f"{of}: {missing[0].left_out}"
