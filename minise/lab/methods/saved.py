"""The answer to a question as a run saves it: a line of a samples file (docs/evaluation.md)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from minise.errors import InputError
from minise.lab.data.kinds import (
    NUMBER,
    OBJECT,
    SHARE,
    TEXT,
    WHOLE,
    Kind,
    check,
    check_fields,
    list_of,
    number_from,
    whole_from,
)

OFF = 0.01  # that far from 1 may a sum of probabilities be: those of old records have four digits


@dataclass(frozen=True)
class SavedGroup:
    """The result of one prompt. choices: their indices in the order of the prompt. probabilities:
    one for each. null: that of "None of the above", None without it. trial: the number of its
    trial, from 0. tokens: those of this prompt and of all before it."""

    choices: list[int]
    probabilities: list[float]
    null: float | None
    trial: int
    tokens: int

    def __post_init__(self) -> None:
        check_fields(self, OF_GROUP, {"null": SHARE})
        m = len(self.choices)
        if len(self.probabilities) != m:
            raise InputError(f"{m} choices have {len(self.probabilities)} probabilities")


OF_GROUP = {
    "choices": list_of(whole_from(0)),
    "probabilities": list_of(SHARE),
    "trial": whole_from(0),
    "tokens": whole_from(1),
}
GROUP = Kind("the result of a prompt", lambda value: isinstance(value, SavedGroup))
OF_ANSWER = {
    "id": TEXT,
    "seed": WHOLE,
    "question_hash": TEXT,
    "prediction": whole_from(0),
    "scores": list_of(NUMBER),
    "normalized": list_of(SHARE),
    "tokens": whole_from(1),
}
OF_ANSWER_OR_NONE = {
    "answer": whole_from(0),
    "cluster": TEXT,
    "label": whole_from(0),
    "logits": list_of(NUMBER),
    "on_labels": number_from(0),  # bfloat16 may round it to more than 1
    "null": SHARE,
    "error": number_from(0),
    "seconds": number_from(0),
    "peak_bytes": whole_from(0),
    "groups": list_of(GROUP),
    "notes": OBJECT,
    "question": TEXT,
    "choices": list_of(TEXT),
}


@dataclass(frozen=True)
class SavedAnswer:
    """The fields of a line; docs/evaluation.md says what each is. None: the line does not say.

    An answer that was made from others, without a model, has no `seconds`. Raises InputError that
    names the field, what it holds and what it must be.
    """

    id: str
    seed: int
    question_hash: str
    answer: int | None
    prediction: int
    scores: list[float]
    normalized: list[float]
    tokens: int
    cluster: str | None = None
    label: int | None = None
    logits: list[float] | None = None
    on_labels: float | None = None
    null: float | None = None
    error: float | None = None
    seconds: float | None = None
    peak_bytes: int | None = None
    groups: list[SavedGroup] | None = None
    notes: dict[str, Any] | None = None
    question: str | None = None
    choices: list[str] | None = None

    def __post_init__(self) -> None:
        check_fields(self, OF_ANSWER, OF_ANSWER_OR_NONE)
        K = len(self.normalized)
        index = whole_from(0, K - 1)
        check("prediction", self.prediction, index)
        for name in ("answer", "label"):
            place = getattr(self, name)
            if place is not None:
                check(name, place, index)
        for group in self.groups or ():
            check("choices of a group", group.choices, list_of(index))
        for name in ("scores", "choices"):
            of_choices = getattr(self, name)
            if of_choices is not None and len(of_choices) != K:
                raise InputError(f"{name} has {len(of_choices)} values, and normalized {K}")
        if self.logits is not None and self.seconds is None:
            raise InputError("seconds is missing; an answer with logits was given by a model")
        total = sum(self.normalized)
        if abs(total - 1) > OFF:
            raise InputError(f"normalized has the sum {total:.3g}, and must have 1")
