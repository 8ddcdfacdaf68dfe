"""A row: the answer to one question as a line of a samples file has it (docs/evaluation.md)."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from minise.errors import InputError
from minise.evaluation.lines import read_lines
from minise.method import Group
from minise.methods.first_trials import group_records
from minise.pipeline import Answered
from minise.question import Asked

Row = dict[str, Any]
KEYS = ("seed", "id", "question_hash", "answer")  # which question a row answers
NEEDED = (*KEYS, "prediction", "probabilities", "scores", "tokens")


@dataclass(frozen=True)
class Keep:
    """What a row has only where it is asked for. groups: the result of each prompt. text: of the
    question and its choices, and what a model writes."""

    groups: bool = False
    text: bool = False


def row_of(answered: Answered, keep: Keep, engine: str, peak_bytes: int | None = None) -> Row:
    """The row of an answer that a model gave by this engine."""
    question = answered.asked.question
    answer = answered.answer
    label = None
    if len(answer.groups) == 1 and answer.prediction in answer.groups[0].choices:
        label = answer.groups[0].choices.index(answer.prediction)
    logits = None
    if answer.on_labels is not None:
        logits = answered.logits[0].labels.tolist()
    row: Row = {
        "id": question.id,
        "seed": answered.asked.seed,
        "cluster": question.cluster or None,
        "question_hash": question.content_hash,
        "answer": question.answer,
        "prediction": answer.prediction,
        "probabilities": answer.probabilities.tolist(),
        "scores": answer.scores.tolist(),
        "label": label,
        "logits": logits,
        "on_labels": answer.on_labels,
        "null": mean_null(answer.groups),
        "tokens": answered.tokens,
        "seconds": answered.seconds,
    }
    if peak_bytes is not None:
        row["peak_bytes"] = peak_bytes
    if keep.groups:
        row["groups"] = group_records(answer, answered.prompts, engine)
    notes = dict(answer.notes)
    if not keep.text:
        notes.pop("reasoning", None)
    if notes:
        row["notes"] = notes
    if keep.text:
        row["question"] = question.text
        row["choices"] = list(question.choices)
    return row


def mean_null(groups: Sequence[Group]) -> float | None:
    """The weighted mean probability of the null option over the groups that have one."""
    total = 0.0
    weights = 0.0
    for group in groups:
        if group.null is not None:
            total += group.weight * group.null
            weights += group.weight
    return total / weights if weights else None


def key_of(row: Row) -> tuple[Any, ...]:
    """Which question a row answers."""
    return tuple(row[name] for name in KEYS)


def key_of_question(asked: Asked) -> tuple[Any, ...]:
    """The same, of a question that is to be answered."""
    question = asked.question
    return asked.seed, question.id, question.content_hash, question.answer


def read_rows(path: Path, cut: bool = False) -> list[Row]:
    """The rows of a file, none if there is no file; `cut` as for `read_lines`. Raises InputError
    for a line that is no answer."""
    rows: list[Row] = []
    for number, line in enumerate(read_lines(path, cut), 1):
        try:
            row = json.loads(line)
            for name in NEEDED:
                row[name]
        except (ValueError, LookupError, TypeError):
            remedy = "delete it and what follows, then run the same command again"
            raise InputError(f"{path}, line {number}: is no answer; {remedy}") from None
        rows.append(row)
    return rows
