"""How the rows of a user's own file become questions: by which columns, and by which form of the
answers ("Your own questions" in docs/evaluation.md)."""

import logging
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from string import ascii_lowercase
from typing import Any

from minise.errors import InputError, quote, shorten
from minise.lab.data.question_file import Row

ROLES = ("id", "question", "choices", "answer")
FORMS = ("text", "letter", "index0", "index1")  # of answers
SAY = "say which is which: --columns question=HEADER,A=HEADER,B=HEADER,answer=HEADER"
_tell = lru_cache(logging.getLogger(__name__).warning)  # to stderr
_CHOICE = re.compile(r"(?:choice|option)[ _]?([0-9]{1,4})|(?:(?:choice|option)[ _])?([a-z])")


@dataclass(frozen=True)
class Fields:
    """The fields of a question, unchecked."""

    id: Any
    text: Any
    choices: Any
    answer: Any


@dataclass(frozen=True)
class Columns:
    """headers: by their names here: id, question, choices, answer, a, choice_1, ... form: of the
    answers, if --columns says it."""

    headers: dict[str, str]
    form: str | None

    def cell(self, row: Row, name: str) -> Any:
        """What a row has in the column of this name; None where it has no such column."""
        return row.get(self.headers[name]) if name in self.headers else None


def own_fields(rows: Sequence[Row], columns: str) -> list[Fields]:
    """The fields of each row's question. columns: as --columns has them. An answer that means no
    choice stays a text; that of an empty cell is None. Raises InputError for columns that are
    missing or unclear."""
    headers: dict[str, None] = {}
    for row in rows:
        headers.update(dict.fromkeys(row))
    found = _find_columns(list(headers), columns)
    has_list = "choices" in found.headers
    choice_names = [] if has_list else _choice_columns(found.headers)
    if "question" not in found.headers or not (choice_names or has_list):
        lists = "or, where one column has lists of choices, question=HEADER,choices=HEADER"
        none = "no columns of a question and its choices"
        raise InputError(f"{none}; {SAY}, {lists}; {_listed(headers)}")

    if "id" not in found.headers and len(rows) > 1:
        _tell("minise: no column id: ids are hashes; name yours by --columns id=HEADER")

    choices = []
    answers = []
    for row in rows:
        if has_list:
            choices.append(found.cell(row, "choices"))
        else:
            cells = [found.cell(row, name) for name in choice_names]
            while cells and _is_blank(cells[-1]):
                cells.pop()
            choices.append(cells)
        answers.append(found.cell(row, "answer"))
    form = found.form
    given = [number for number, answer in enumerate(answers) if not _is_blank(answer)]
    if given and form is None:
        given_answers = [answers[number] for number in given]
        their_choices = [choices[number] for number in given]
        form = _find_form(given_answers, their_choices, found.headers["answer"])

    fields = []
    for row, choices_of_row, answer in zip(rows, choices, answers, strict=True):
        meaning = None
        if form is not None and not _is_blank(answer):
            meaning = _meaning(answer, choices_of_row, form)
        question = found.cell(row, "question")
        fields.append(Fields(found.cell(row, "id"), question, choices_of_row, meaning))
    return fields


def _is_blank(cell: Any) -> bool:
    """Whether a cell holds nothing, or NaN; a 0 or false of JSON is something."""
    return cell is None or cell != cell or not str(cell).strip()


def _find_columns(headers: Sequence[str], columns: str) -> Columns:
    given: dict[str, str] = {}
    form = None
    for part in re.split(r",(?=[^,=]*=)", columns) if columns else ():  # headers may have commas
        role, _, header = part.partition("=")
        name = role.strip().lower()
        header = header.strip()
        if name.removeprefix("answer_") in FORMS:
            form = name.removeprefix("answer_")
            name = "answer"
        if header not in headers or not (name in ROLES or _CHOICE.fullmatch(name)):
            roles = f"the roles are {', '.join(ROLES)}, answer_{', answer_'.join(FORMS)}, A, B, ..."
            raise InputError(f"--columns {quote(part)}: {roles}; {_listed(headers)}")
        given[name] = header
    names = {}
    for header in reversed(headers):  # of two with one name the first counts
        if header not in given.values():
            names[header.strip().lower()] = header
    names.update(given)
    return Columns(names, form)


def _choice_columns(names: Iterable[str]) -> list[str]:
    """The names of the columns that hold one choice each, in their order."""
    labels = {}
    for name in names:
        match = _CHOICE.fullmatch(name)
        if match:
            labels[name] = match[1] or match[2]
    if not {"a", "b"} <= labels.keys():  # a column is called "n" by chance
        labels = {name: label for name, label in labels.items() if len(name) > 1}
    K = len(labels)
    by_label = {label: name for name, label in labels.items()}
    letters = list(ascii_lowercase[:K])
    numbers = [str(i + 1) for i in range(K)]
    for wanted in (letters, numbers):
        if by_label.keys() == set(wanted):
            return [by_label[label] for label in wanted]
    found = _listed(sorted(labels))
    raise InputError(f"{found}; call choices choice_1, choice_2, ... or A, B, ...")


def _meaning(answer: Any, choices: Any, form: str) -> int | str:
    """The index of the choice that an answer of this form means; the answer if it means none."""
    texts = []
    if isinstance(choices, list):
        texts = [str(choice).strip() for choice in choices]
    text = str(answer).strip()
    index = -1
    if form == "text":
        if text in texts:
            index = texts.index(text)
    elif form == "letter":
        letter = re.fullmatch(r"[(\[]?([A-Za-z])[)\].:]?", text)
        if letter:
            index = ascii_lowercase.index(letter[1].lower())
    elif re.fullmatch(r"[0-9]{1,9}(\.0)?", text):  # a column with empty cells may become 2.0
        index = int(float(text))
        if form == "index1":
            index -= 1
    return index if 0 <= index < len(texts) else text


def _find_form(answers: Sequence[Any], choices: Sequence[Any], column: str) -> str:
    """The form that fits all answers, or the most of them. Raises InputError where forms that fit
    say different things, or where only counting from 1 fits."""
    forms: Sequence[str] = FORMS
    if any(type(answer) in (int, float) for answer in answers):  # they are no letters and no texts
        forms = ("index0", "index1")
    meanings: dict[str, list[int | str]] = {}
    misfits = {}
    for form in forms:
        meanings[form] = []
        for answer, choices_of_row in zip(answers, choices, strict=True):
            meanings[form].append(_meaning(answer, choices_of_row, form))
        misfits[form] = sum(isinstance(meaning, str) for meaning in meanings[form])
    best = min(forms, key=misfits.__getitem__)
    fitting = [form for form in forms if misfits[form] == 0 and form != "index1"]
    if best == "index1" or any(meanings[form] != meanings[best] for form in fitting):
        say = " or ".join(f"answer_{form}={column}" for form in fitting or ["index1"])
        raise InputError(f"it is not clear how to read the answers; say --columns {say}")
    return best


def _listed(headers: Iterable[str]) -> str:
    return f"its columns are {shorten(', '.join(map(quote, headers)), 200)}"
