"""One row of a file becomes a question.

A row has, in any order and however large or small the letters of its columns' names are,

- question: text;
- choices: a list of two or more texts; or one column for each, called A, B, C, ...,
  choice_1, choice_2, ... or option_a, option_b, ... (a row with fewer leaves the last ones empty).
  The right choice stands there once;
- answer: the right choice, as its letter (B or (B)), its text or its index counted from 0; only an
  evaluation needs it;
- id: optional, text or a whole number; without it, a hash of question and choices.

Other columns are ignored. An answer that can be read in two ways, as two choices, is refused.
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
# option_a, choice 2, optionA, A; but neither "choices" nor "OPTIONS".
_CHOICE = re.compile(
    r"(?i:(?:choice|option)[ _]?[0-9]{1,4}|(?:(?:choice|option)[ _])?[a-z])"
    r"|(?:[Cc]hoice|[Oo]ption)[A-Z]"
)
_LETTER = re.compile(r"[(\[]?([A-Za-z])[)\].:]?")
_TYPES: dict[type, str] = {str: "text", int: "a whole number", list: "a list", dict: "an object"}


def field(row: Row, name: str, *kinds: type) -> Any:
    """A value that must be there, of one of these types, and not blank."""
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
    field at fault."""
    text, choices = field(row, "question", str), field(row, "choices", list)
    has_answer = needs_answer or row.get("answer") not in (None, "")
    answer = field(row, "answer", int) if has_answer else None
    if len(choices) < 2:
        raise InputError(f"choices: {len(choices)}; at least 2 are needed")
    identity = "" if row.get("id") in (None, "") else str(field(row, "id", str, int))
    question = Question(text, choices, identity, answer)
    plain = [choice.strip() for choice in choices]
    if answer is not None and plain.count(plain[answer]) > 1:
        raise InputError(f"two choices are {quote(plain[answer])}, the right one")
    return question


def own_row(row: Row) -> Row:
    """A row of FIELDS from a row of any shape that the module names."""
    names = own_columns(tuple(row))
    found: Row = {name: row[column] for name, column in names.items() if column}
    if "choices" not in found and (columns := choice_columns(tuple(row))):
        found["choices"] = [row[column] for column in columns]
        while found["choices"] and str(found["choices"][-1] or "").strip() == "":
            found["choices"].pop()
    elif isinstance(listed := found.get("choices"), str) and listed.lstrip().startswith("["):
        try:  # a list in one cell of CSV
            found["choices"] = json.loads(listed)
        except (ValueError, RecursionError):
            raise InputError(f"choices is {quote(listed)}; it must be a list in JSON") from None
    answer, choices = found.get("answer"), found.get("choices")
    if isinstance(answer, str):
        found["answer"] = answer.strip()
        if answer.strip() and isinstance(choices, list):
            found["answer"] = _read_answer(answer.strip(), choices)
    return found


@lru_cache(64)  # the rows of a file have the same columns
def own_columns(columns: tuple[str, ...]) -> dict[str, str | None]:
    """The column for each of FIELDS; None if there is none. An exact name goes before another."""
    by_name = {column.strip().lower(): column for column in reversed(columns)}
    return {name: name if name in columns else by_name.get(name) for name in FIELDS}


@lru_cache(64)
def choice_columns(columns: tuple[str, ...]) -> tuple[str, ...]:
    """The columns that hold one choice each, in their order. Raises InputError for names that leave
    one out, or of two kinds."""
    kinds: dict[tuple[str, bool], dict[str, str]] = {}
    for column in columns:
        if is_choice(column):
            name = column.strip().lower()
            number = re.sub("[^0-9]", "", name)
            kind = name.removesuffix(number or name[-1]).strip(" _")
            same = kinds.setdefault((kind, bool(number)), {})
            if (first := same.setdefault(number or name[-1], column)) != column:
                both = f"{quote(column)} and {quote(first)} are both a choice"
                raise InputError(f"its columns {both} of one name; keep one")
    if not {"a", "b"} <= kinds.get(("", False), {}).keys():
        kinds.pop(("", False), None)  # a column that is called "n" by chance
    if not kinds:
        return ()
    ((_, numbered), each), *others = kinds.items()
    count = len(each)
    wanted = [str(i + 1) for i in range(count)] if numbered else list(ascii_lowercase[:count])
    if others or set(wanted) != each.keys():
        have = shorten(", ".join(filter(is_choice, columns)), 80)
        raise InputError(f"its choices are {have}; call them choice_1, choice_2, ... or A, B, ...")
    return tuple(each[name] for name in wanted)


def is_choice(column: str) -> bool:
    """Whether this is the name of a column that holds one choice."""
    return len(column) < 20 and _CHOICE.fullmatch(column.strip()) is not None


def counted_from_1(rows: Iterable[tuple[str, Any]]) -> str:
    """Why the answers of these rows, with their places, may be counted from 1; empty if none is
    a number or one is 0. Raises InputError if one is the number of choices."""
    found, last = 0, ""
    for place, row in rows:
        if not isinstance(row, dict):
            continue
        given = str(row.get(own_columns(tuple(row))["answer"] or "")).strip()
        if not re.fullmatch("[0-9]{1,9}", given) or int(given) == 0:
            return ""
        try:
            own = own_row(row)
        except InputError:
            continue  # the row is named later
        if own.get("answer") != int(given) or not isinstance(own.get("choices"), list):
            return ""  # a text
        found += 1
        if int(given) == len(own["choices"]):
            last = last or f"{place}: answer {given} of {given} choices, and no answer is 0"
    if last:
        raise InputError(f"answers seem to be counted from 1 ({last}); count from 0")
    few = f"none of {found:,} answers is 0; if they are counted from 1, count from 0"
    return few if found >= 20 else ""


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
