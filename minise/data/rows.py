"""One row of a file becomes a question.

A row has these columns, in any order. Capital and small letters in their names are the same.

- question: text;
- choices: a list of two or more texts; or one column for each, called A, B, C, ...,
  choice_1, choice_2, ... or option_a, option_b, ... (a row with fewer leaves the last ones empty).
  No other choice may have the text of the right one;
- answer: the right choice, as its letter (B or (B)), its text or its index counted from 0; only an
  evaluation needs it;
- id: optional, text or a whole number; without it, a hash of question and choices.

Other columns are ignored. An answer that can mean two different choices is refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from functools import lru_cache
from string import ascii_lowercase
from typing import Any

from minise.errors import InputError, quote, shorten
from minise.question import Question

Row = dict[str, Any]

FIELDS = ("id", "question", "choices", "answer")
# Matches option_a, choice 2, optionA, A; but neither "choices" nor "OPTIONS".
_CHOICE = re.compile(
    r"(?i:(?:choice|option)[ _]?[0-9]{1,4}|(?:(?:choice|option)[ _])?[a-z])"
    r"|(?:[Cc]hoice|[Oo]ption)[A-Z]"
)
_LETTER = re.compile(r"[(\[]?([A-Za-z])[)\].:]?")
_TYPES: dict[type, str] = {str: "text", int: "a whole number", list: "a list", dict: "an object"}


def field(row: Row, name: str, *kinds: type) -> Any:
    """A value of one of these types. Raises InputError if it is missing or blank."""
    value = row.get(name)
    if value is None:
        raise InputError(f"{name} is missing")
    if isinstance(value, str) and not value.strip():
        raise InputError(f"{name} is empty")
    if not isinstance(value, kinds) or isinstance(value, bool):
        raise InputError(f"{name} is {quote(value)}; it must be {_TYPES[kinds[0]]}")
    return value


def to_question(row: Row, needs_answer: bool = True) -> Question:
    """The question in a row of FIELDS, whose answer is an index. Raises InputError that names the
    wrong field."""
    text, choices = field(row, "question", str), field(row, "choices", list)
    has_answer = needs_answer or row.get("answer") not in (None, "")
    answer = field(row, "answer", int) if has_answer else None
    if len(choices) < 2:
        raise InputError(f"choices: {len(choices)}; at least 2 are needed")
    identity = "" if row.get("id") in (None, "") else str(field(row, "id", str, int))
    question = Question(text, choices, identity, answer)
    texts = [choice.strip() for choice in choices]
    if answer is not None and texts.count(texts[answer]) > 1:
        raise InputError(f"two choices are {quote(texts[answer])}, the right one")
    return question


def read_row(row: Row) -> Row:
    """A row of FIELDS from a row in any of the forms that the module describes."""
    columns = field_columns(tuple(row))
    fields: Row = {name: row[column] for name, column in columns.items() if column}
    if "choices" not in fields:
        if cells := [row[column] for column in choice_columns(tuple(row))]:
            fields["choices"] = _without_blank_end(cells)
    elif isinstance(fields["choices"], str):
        fields["choices"] = _read_list(fields["choices"])
    answer, choices = fields.get("answer"), fields.get("choices")
    if isinstance(answer, str):
        fields["answer"] = answer.strip()
        if answer.strip() and isinstance(choices, list):
            fields["answer"] = _read_answer(answer.strip(), choices)
    return fields


@lru_cache(64)  # the rows of a file have the same columns
def field_columns(columns: tuple[str, ...]) -> dict[str, str | None]:
    """The column for each of FIELDS; None if there is none. An exact name goes before another."""
    by_name = {column.strip().lower(): column for column in reversed(columns)}
    return {name: name if name in columns else by_name.get(name) for name in FIELDS}


@lru_cache(64)
def choice_columns(columns: tuple[str, ...]) -> tuple[str, ...]:
    """The columns that hold one choice each, in their order. Raises InputError for names that leave
    one out, or of two kinds."""
    # ("choice", True) -> {"1": "choice_1", ...}; ("", False) -> {"a": "A", ...}
    kinds: dict[tuple[str, bool], dict[str, str]] = {}
    for column in filter(is_choice, columns):
        name = column.strip().lower()
        number = re.sub("[^0-9]", "", name)
        label = number or name[-1]
        kind = name.removesuffix(label).strip(" _")
        same_kind = kinds.setdefault((kind, bool(number)), {})
        if label in same_kind:
            both = f"{quote(column)} and {quote(same_kind[label])}"
            raise InputError(f"its columns {both} have the same name; keep one")
        same_kind[label] = column
    if not {"a", "b"} <= kinds.get(("", False), {}).keys():
        kinds.pop(("", False), None)  # a column that is called "n" by chance
    if not kinds:
        return ()
    ((_, numbered), by_label), *others = kinds.items()
    count = len(by_label)
    labels = [str(i + 1) for i in range(count)] if numbered else list(ascii_lowercase[:count])
    if others or set(labels) != by_label.keys():
        names = shorten(", ".join(filter(is_choice, columns)), 80)
        raise InputError(f"its choices are {names}; call them choice_1, choice_2, ... or A, B, ...")
    return tuple(by_label[label] for label in labels)


def is_choice(column: str) -> bool:
    """Whether this is the name of a column that holds one choice."""
    return len(column) < 20 and _CHOICE.fullmatch(column.strip()) is not None


def counted_from_1(rows: Iterable[tuple[str, Any]]) -> str:
    """Why the answers of these rows, with their places, may be counted from 1; empty if one is 0 or
    no number. Raises InputError if one is the number of choices."""
    count, proof = 0, ""
    for place, row in rows:
        if not isinstance(row, dict):
            continue
        text = str(row.get(field_columns(tuple(row))["answer"] or "")).strip()
        if not re.fullmatch("[0-9]{1,9}", text) or int(text) == 0:
            return ""
        try:
            fields = read_row(row)
        except InputError:
            continue  # the row is reported later
        if fields.get("answer") != int(text) or not isinstance(fields.get("choices"), list):
            return ""  # the number is the text of a choice
        count += 1
        if int(text) == len(fields["choices"]) and not proof:
            proof = f"{place}: answer {text} of {text} choices, and no answer is 0"
    if proof:
        raise InputError(f"answers seem to be counted from 1 ({proof}); count from 0")
    if count < 20:
        return ""
    return f"none of {count:,} answers is 0; if they are counted from 1, count from 0"


def _without_blank_end(cells: list[Any]) -> list[Any]:
    """The cells without the blank ones at the end: a row may have fewer choices than others."""
    while cells and str(cells[-1] or "").strip() == "":
        cells.pop()
    return cells


def _read_list(cell: str) -> Any:
    """The list in a cell of CSV, written as JSON; a cell of another kind as it is."""
    if not cell.lstrip().startswith("["):
        return cell
    try:
        return json.loads(cell)
    except (ValueError, RecursionError):
        raise InputError(f"choices is {quote(cell)}; it must be a list in JSON") from None


def _read_answer(answer: str, choices: list[Any]) -> int:
    """The index that an answer means, as a letter, a choice's text or an index."""
    K, letters = len(choices), ascii_lowercase[: len(choices)].upper()
    texts = [text.strip() if isinstance(text, str) else "" for text in choices]
    same = [text for text in texts if text == answer]
    same = same or [text for text in texts if text.lower() == answer.lower()]
    # Of equal texts the first: `to_question` refuses them as the right choice.
    readings = {texts.index(text): f"the text of choice {texts.index(text) + 1}" for text in same}
    letter = _LETTER.fullmatch(answer)
    if letter and letter[1].upper() in letters:
        readings.setdefault(letters.index(letter[1].upper()), "a letter")
    is_index = re.fullmatch("-?[0-9]{1,9}", answer) is not None
    if is_index and (0 <= int(answer) < K or not readings):
        readings.setdefault(int(answer), "an index counted from 0")
    if len(readings) == 1:
        return next(iter(readings))
    if readings:
        ways = " and ".join(sorted(readings.values()))
        other = "the index, counted from 0" if letter else "the letter"
        raise InputError(f"answer {quote(answer)} is {ways}; write {other}")
    span = f"{letters[:1]}-{letters[-1:]}"
    if letter:
        raise InputError(f"answer {quote(answer)} is not one of {span}")
    ways = f"a letter {span}, the choice's text, or an index from 0 to {K - 1}"
    raise InputError(f"answer {quote(answer)} is no choice; write {ways}")
