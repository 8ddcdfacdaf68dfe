"""One row of a file becomes a question.

A row has these columns, in any order. Capital and small letters in their names are the same.

- question: text;
- choices: a list of two or more texts; or one column for each, called A, B, C, ...,
  choice_1, choice_2, ... or option_a, option_b, ... (a row with fewer leaves the last ones empty).
  No other choice may have the text of the right one;
- answer: the right choice, as its letter (B or (B)), its text or its index counted from 0; only an
  evaluation needs it;
- id: optional, text or a whole number; without it, a hash of question and choices.

Other columns are ignored, and named. An answer that can mean two different choices has the form in
which all answers of the file can be read; if there is no such form, it is refused.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from string import ascii_lowercase
from typing import Any

from minise.errors import InputError, quote, shorten
from minise.question import Question

Row = dict[str, Any]

FIELDS = ("id", "question", "choices", "answer")
FORMS = ("letter", "text", "index0", "index1")  # of answers; an index is counted from 0 or from 1
_FORMS = {"letter": "letters", "text": "texts of choices", "index0": "indices counted from 0"}
# Words in the names of columns that may hold a field under another name.
_HINTS = {
    "id": {"id", "nr", "no", "num", "number", "qid", "#"},
    "question": {"question", "prompt", "stem", "query", "text"},
    "choices": {"choices", "options", "alternatives"},
    "answer": {"answer", "correct", "right", "solution", "key", "label", "gold", "target"},
}
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


def read_row(row: Row, form: str | None = None) -> Row:
    """A row of FIELDS from a row in any of the forms that the module describes. form: the one of
    FORMS that the answer has; None: any but "index1"."""
    fields = _fields(row)
    answer, choices = fields.get("answer"), fields.get("choices")
    if form and type(answer) is int:
        answer = str(answer)
    if isinstance(answer, str):
        fields["answer"] = answer.strip()
        if answer.strip() and isinstance(choices, list):
            fields["answer"] = _read_answer(answer.strip(), choices, form)
    return fields


def _fields(row: Row) -> Row:
    """The row with the names of FIELDS, and its choices as a list. The answer is as in the file."""
    columns = field_columns(tuple(row))
    fields: Row = {name: row[column] for name, column in columns.items() if column}
    if "choices" not in fields:
        if cells := [row[column] for column in choice_columns(tuple(row))]:
            fields["choices"] = _without_blank_end(cells)
    elif isinstance(fields["choices"], str):
        fields["choices"] = _read_list(fields["choices"])
    return fields


def with_names(
    rows: Sequence[tuple[str, Any]], columns: Mapping[str, str]
) -> list[tuple[str, Any]]:
    """The rows with columns called as here: {"answer": "Correct Answer"}. Other columns of these
    names are left out. Raises InputError for a column that no row has."""
    names = dict.fromkeys(name for _, row in rows if isinstance(row, dict) for name in row)
    for column in columns.values():
        if names and column not in names:
            listed = shorten(" ".join(", ".join(names).split()), 200)
            reason = f"--columns: no column is called {quote(column)}"
            raise InputError(f"{reason}; its columns are {listed}")
    gone = {*columns.values()} | {n for n in names if n.strip().lower() in map(str.lower, columns)}
    renamed: list[tuple[str, Any]] = []
    for place, row in rows:
        if isinstance(row, dict):
            named = {name: row[column] for name, column in columns.items() if column in row}
            row = {**named, **{name: row[name] for name in row if name not in gone}}
        renamed.append((place, row))
    return renamed


def ignored(columns: tuple[str, ...]) -> str:
    """Which of these columns are not read, as a notice; empty if all are."""
    used = {*field_columns(columns).values(), *choice_columns(columns)}
    unused = [column for column in columns if column.strip() and column not in used]
    if not unused:
        return ""
    return f"ignored columns: {shorten(', '.join(map(quote, unused)), 120)}{advice(columns)}"


def advice(columns: tuple[str, ...]) -> str:
    """How to name the columns that may hold a missing field, for the end of a message; empty if
    there are none."""
    used = {*field_columns(columns).values()}
    guesses: dict[str, str] = {}
    for name, hints in _HINTS.items():
        shares = {}
        # A name that is long or not printable is none to paste.
        for column in (c for c in columns if len(c) <= 80 and c.isprintable()):
            spaced = re.sub("([a-z])([A-Z])", r"\1 \2", column).lower()
            words = re.findall(r"[^\W\d_]+|#", spaced)
            if column not in used and not is_choice(column) and hints & {*words}:
                shares[column] = len(hints & {*words}) / len(words)
        is_missing = field_columns(columns)[name] is None
        if is_missing and shares and not (name == "choices" and any(map(is_choice, columns))):
            guesses[name] = max(shares, key=lambda column: shares[column])
    if not guesses:
        return ""
    holds = " and ".join(f"{quote(column)} holds the {name}" for name, column in guesses.items())
    option = shlex.quote(",".join(f"{name}={column}" for name, column in guesses.items()))
    return f"; if {holds}: --columns {option}"


def answer_form(rows: Iterable[tuple[str, Any]]) -> str | None:
    """The one form in which all answers of these rows, with their places, can be read, if one of
    them alone could mean two choices; None if none could, or if no form reads all. Raises
    InputError if several forms do."""
    forms, doubtful = list(_FORMS), ""
    for place, row in rows:
        try:
            fields = _fields(row) if isinstance(row, dict) else {}
        except InputError:
            continue  # the row is reported later
        answer, choices = fields.get("answer"), fields.get("choices")
        if type(answer) is int:
            forms = [form for form in forms if form == "index0"]
        if not (isinstance(answer, str) and answer.strip() and isinstance(choices, list)):
            continue
        readings = _readings(answer.strip(), choices)
        if readings:
            forms = [form for form in forms if len(readings.get(form, ())) == 1]
        meanings = sorted({i + 1 for each in readings.values() for i in each})
        if len(meanings) > 1 and not doubtful:
            means = " or ".join(f"choice {number}" for number in meanings)
            doubtful = f"{place}: {quote(answer.strip())} is {means}"
    if not doubtful or not forms:
        return None
    if len(forms) > 1:
        kinds = " or ".join(_FORMS[form] for form in forms)
        ways = " or ".join(f"--answers {form}" for form in forms)
        raise InputError(f"the answers may be {kinds} ({doubtful}); say which: {ways}")
    return forms[0]


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


def counted_from_1(rows: Iterable[tuple[str, Any]], form: str | None = None) -> str:
    """Why the answers of these rows, with their places, may be counted from 1; empty if one is 0 or
    no number. Raises InputError if one is the number of choices. form: as for `read_row`."""
    count, proof = 0, ""
    for place, row in rows:
        if not isinstance(row, dict):
            continue
        text = str(row.get(field_columns(tuple(row))["answer"] or "")).strip()
        if not re.fullmatch("[0-9]{1,9}", text) or int(text) == 0:
            return ""
        try:
            fields = read_row(row, form)
        except InputError:
            continue  # the row is reported later
        if fields.get("answer") != int(text) or not isinstance(fields.get("choices"), list):
            return ""  # the number is the text of a choice
        count += 1
        if int(text) == len(fields["choices"]) and not proof:
            proof = f"{place}: answer {text} of {text} choices, and no answer is 0"
    if proof:
        raise InputError(f"answers seem to be counted from 1 ({proof}); give --answers index1")
    if count < 20:
        return ""
    return f"none of {count:,} answers is 0; if they are counted from 1, give --answers index1"


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


def _readings(answer: str, choices: list[Any]) -> dict[str, list[int]]:
    """The indices of the choices that an answer means, for each form that it may have."""
    K, readings = len(choices), {}
    texts = [text.strip() if isinstance(text, str) else "" for text in choices]
    same = [text for text in texts if text == answer]
    if same := same or [text for text in texts if text.lower() == answer.lower()]:
        # Of equal texts the first: `to_question` refuses them as the right choice.
        readings["text"] = list(dict.fromkeys(map(texts.index, same)))
    letter = _LETTER.fullmatch(answer)
    if letter and letter[1].lower() in ascii_lowercase[:K]:
        readings["letter"] = [ascii_lowercase.index(letter[1].lower())]
    if re.fullmatch("[0-9]{1,9}", answer) and int(answer) < K:
        readings["index0"] = [int(answer)]
    return readings


def _read_answer(answer: str, choices: list[Any], form: str | None) -> int:
    """The index that an answer means, as a letter, a choice's text or an index."""
    K, letters = len(choices), ascii_lowercase[: len(choices)].upper()
    readings = _readings(answer, choices)
    is_index = re.fullmatch("-?[0-9]{1,9}", answer) is not None
    if is_index and (form == "index0" or not (form or readings)):
        return int(answer)  # `to_question` refuses it if it is no choice
    if is_index and form == "index1" and 1 <= int(answer) <= K:
        return int(answer) - 1
    means = (
        {i for each in readings.values() for i in each}
        if form is None
        else {*readings.get(form, ())}
    )
    if len(means) == 1:
        return means.pop()
    span = f"{letters[:1]}-{letters[-1:]}"
    if form and not means:
        kind = {
            "letter": f"a letter {span}",
            "text": "the text of a choice",
            "index0": f"an index from 0 to {K - 1}",
            "index1": f"an index from 1 to {K}",
        }[form]
        raise InputError(f"answer {quote(answer)} is not {kind}, the form of this column")
    if means:
        ways = [f"the text of choice {i + 1}" for i in readings.get("text", ())]
        ways += ["a letter"] * ("letter" in readings)
        ways += ["an index counted from 0"] * ("index0" in readings)
        other = "the letter" if "index0" in readings else "the index, counted from 0"
        say = " or ".join(f"--answers {form}" for form, each in readings.items() if len(each) == 1)
        remedy = f"write {other}{', or give ' if say else ''}{say}"
        raise InputError(f"answer {quote(answer)} is {' and '.join(sorted(ways))}; {remedy}")
    if _LETTER.fullmatch(answer):
        raise InputError(f"answer {quote(answer)} is not one of {span}")
    kinds = f"a letter {span}, the choice's text, or an index from 0 to {K - 1}"
    raise InputError(f"answer {quote(answer)} is no choice; write {kinds}")
