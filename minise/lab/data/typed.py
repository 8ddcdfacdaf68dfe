"""Typed questions in the wire format of decision models: noul (yes or no), choice (one of named
options) and score (one of ordered levels). Each becomes a question with choices.

    {"late": {"type": "noul", "instructions": "Is the parcel late?"},
     "team": {"type": "choice", "instructions": "Whose is it?", "criteria": {"it": "Computers"}},
     "mood": {"type": "score", "instructions": "How angry?", "criteria": ["Calm", "Angry"]}}
"""

import json
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from minise.errors import InputError, check_name, one_line, quote
from minise.question import Question, check_text

METHOD = "presence"  # the cheapest way to most of the gain: docs/real.md
TYPES = ("noul", "choice", "score")


@dataclass(frozen=True)
class TypedQuestion:
    """question: its text is the state and the instructions. options: for each option's id (of a
    noul "true", "false"; of a score "0", "1", ...) the index of its text among the choices. An
    option is what its description says: options of one description are one choice."""

    type: str
    question: Question
    options: dict[str, int]


def read_questions(state: Any, questions: Any) -> dict[str, TypedQuestion]:
    """The questions on a state by their ids. A state that is no text is written as JSON. Raises
    InputError that names the question."""
    if not isinstance(state, str) and state not in (None, {}, []):
        try:
            state = json.dumps(state, ensure_ascii=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise InputError(f"the state is no JSON ({one_line(error)}); give a text") from None
    check_text("state", state)
    if not isinstance(questions, dict) or not questions:
        raise InputError(f"questions is {quote(questions)}; give an object, a question for each id")
    typed = {}
    for id, asked in questions.items():
        try:
            typed[id] = read_question(state, asked)
        except InputError as error:
            raise InputError(f"question {quote(id, 40)}: {error}") from None
    return typed


def read_question(state: str, asked: Any) -> TypedQuestion:
    check_fields(asked, ("type", "instructions"), ("criteria",))
    check_name("type", asked["type"], TYPES)
    check_text("instructions", asked["instructions"])
    texts = {}
    for id, text in described(asked["type"], asked.get("criteria")).items():
        check_text(f"description of {quote(id, 40)}", text)
        texts[id] = text.strip()
    choices = list(dict.fromkeys(texts.values()))
    if len(choices) < 2:
        raise InputError(f"has {len(choices)} different options; give at least two")
    question = Question(f"{state}\n\n{asked['instructions']}", choices)
    options = {id: choices.index(text) for id, text in texts.items()}
    return TypedQuestion(asked["type"], question, options)


def described(type: str, criteria: Any) -> dict[str, Any]:
    """For each option's id its description; of a choice the id, where it is empty."""
    if type == "noul":
        if criteria not in (None, {}, []):
            raise InputError("a noul has no criteria; leave them out, or make it a choice")
        return {"true": "Yes", "false": "No"}
    if type == "score":
        if not isinstance(criteria, list):
            raise InputError("a score's criteria are a list; give its levels, the lowest first")
        return {str(level): text for level, text in enumerate(criteria)}
    if not isinstance(criteria, dict):
        raise InputError("a choice's criteria are an object; give each option's id a description")
    return {id: id if text in ("", None) else text for id, text in criteria.items()}


def check_fields(value: Any, needed: Collection[str], others: Collection[str]) -> None:
    """Refuse what is no object with these fields, the others perhaps."""
    names = ", ".join([*needed, *(f"perhaps {name}" for name in others)])
    if not isinstance(value, dict):
        raise InputError(f"is {quote(value)}; give an object with {names}")
    for name in needed:
        if name not in value:
            raise InputError(f"has no {name}; give an object with {names}")
    for name in value:
        if name not in (*needed, *others):
            raise InputError(f"has {quote(name, 40)}, which minise does not know; leave it out")
