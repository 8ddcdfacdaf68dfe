"""How the rows of a user's own file become questions: by which columns, and by which form of the
answers ("Your own questions" in docs/evaluation.md). Headers may be words of headers.json: German,
French, Spanish, Chinese."""

import json
import logging
import re
import unicodedata
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from string import ascii_lowercase
from typing import Any

from minise.data.question_file import Row
from minise.errors import InputError, printable, quote, shorten

Fields = tuple[Any, Any, Any, Any]  # of a question, unchecked: id, text, choices, answer
ROLES = ("id", "question", "choices", "answer")
FORMS = ("text", "letter", "index0", "index1")  # of answers
SAY = "say which is which: --columns question=HEADER,A=HEADER,B=HEADER,answer=HEADER"
WORDS: dict[str, str] = json.loads(Path(__file__).with_name("headers.json").read_text("utf-8"))
_OPTIONS = "|".join(word for word, name in WORDS.items() if name != "question")
_NUMBERED = re.compile(f"(?:{_OPTIONS})[ _]?([0-9]{{1,4}}|[a-z])")
_tell = lru_cache(logging.getLogger(__name__).warning)  # to stderr
_CHOICE = re.compile(r"(?:choice|option)[ _]?([0-9]{1,4})|(?:(?:choice|option)[ _])?([a-z])")


def own_fields(rows: Sequence[Row], columns: str) -> list[Fields]:
    """The fields of each row's question. columns: as --columns has them. An answer that means no
    choice stays a text. Raises InputError for columns that are missing or unclear."""
    headers = list(dict.fromkeys(header for row in rows for header in row))
    names, form = _find_columns(headers, columns)
    labelled = [] if "choices" in names else _choice_columns(names)
    if "question" not in names or not (labelled or "choices" in names):
        raise InputError(f"no columns of a question and its choices; {SAY}; {_listed(headers)}")
    table = [{name: row.get(header) for name, header in names.items()} for row in rows]
    choices = [[row[name] for name in labelled] if labelled else row["choices"] for row in table]
    for cells in choices if labelled else ():
        while cells and not str(cells[-1] or "").strip():
            cells.pop()
    answers = ["" if row.get("answer") is None else row["answer"] for row in table]
    if any(str(answer).strip() for answer in answers):
        form = form or _find_form(answers, choices, names["answer"])
        answers = [_meaning(*pair, form) for pair in zip(answers, choices, strict=True)]
    else:
        answers = [None] * len(rows)
    ids, texts = [row.get("id") for row in table], [row["question"] for row in table]
    return list(zip(ids, texts, choices, answers, strict=True))


def _find_columns(headers: Sequence[str], columns: str) -> tuple[dict[str, str], str | None]:
    """The headers by their names here, and the form of the answers if `columns` says it."""
    given, form = dict[str, str](), None
    for part in re.split(r",(?=[^,=]*=)", columns) if columns else ():  # headers may have commas
        name, _, header = (piece.strip() for piece in part.partition("="))
        name = name.lower()
        if name.removeprefix("answer_") in FORMS:
            name, form = "answer", name.removeprefix("answer_")
        if header not in headers or not (name in ROLES or _CHOICE.fullmatch(name)):
            roles = f"the roles are {', '.join(ROLES)}, answer_{', answer_'.join(FORMS)}, A, B, ..."
            raise InputError(f"--columns {quote(part)}: {roles}; {_listed(headers)}")
        given[name] = header
    free = [header for header in reversed(headers) if header not in given.values()]
    names = {**{header.strip().lower(): header for header in free}, **given}
    return names if columns else {**names, **_translate(names)}, form


def _translate(names: dict[str, str]) -> dict[str, str]:
    """Headers in other languages by their names here. What is guessed is told once."""
    found = dict[str, str]()
    for header in reversed(names.values()):
        word = unicodedata.normalize("NFKC", header.strip().lower())  # one form of ö, of wide A
        choice = _NUMBERED.fullmatch(word)
        name = WORDS.get(word) or (f"choice {choice[1]}" if choice else "")
        if name and name not in names and found.setdefault(name, header) != header:
            raise InputError(f"{quote(found[name])} or {quote(header)} is the {name}; {SAY}")
    if found:
        guess = ",".join(f"{name}={header}" for name, header in found.items())
        _tell(printable(f"minise: guessed --columns {quote(guess, 300)}"))
    return found


def _choice_columns(names: Iterable[str]) -> list[str]:
    """The names of the columns that hold one choice each, in their order."""
    matches = {name: m for name in names if (m := _CHOICE.fullmatch(name))}
    if not {"a", "b"} <= matches.keys():  # a column is called "n" by chance
        matches = {name: m for name, m in matches.items() if len(name) > 1}
    by_label = {m[1] or m[2]: name for name, m in matches.items()}
    for labels in (list(ascii_lowercase), [str(i + 1) for i in range(len(matches))]):
        if by_label.keys() == set(labels[: len(matches)]):
            return [by_label[label] for label in labels[: len(matches)]]
    raise InputError(
        f"{_listed(sorted(matches))}; call choices choice_1, choice_2, ... or A, B, ..."
    )


def _meaning(answer: Any, choices: Any, form: str) -> int | str:
    """The index of the choice that an answer of this form means; the answer if it means none."""
    texts = [str(choice).strip() for choice in (choices if isinstance(choices, list) else ())]
    text, index = str(answer).strip(), -1
    if form == "text":
        index = texts.index(text) if text in texts else -1
    elif form == "letter" and (letter := re.fullmatch(r"[(\[]?([A-Za-z])[)\].:]?", text)):
        index = ascii_lowercase.index(letter[1].lower())
    elif form.startswith("index") and re.fullmatch("[0-9]{1,9}", text):
        index = int(text) - int(form == "index1")
    return index if 0 <= index < len(texts) else text


def _find_form(answers: Sequence[Any], choices: Sequence[Any], column: str) -> str:
    """The form that fits all answers, or the most of them. Raises InputError where forms that fit
    say different things, or where only counting from 1 fits."""
    numbers = any(type(answer) is int for answer in answers)  # which are no letters and no texts
    pairs, forms = list(zip(answers, choices, strict=True)), FORMS[2 if numbers else 0 :]
    read = {form: [_meaning(*pair, form) for pair in pairs] for form in forms}
    misfits = {form: sum(isinstance(meant, str) for meant in read[form]) for form in forms}
    best = min(misfits, key=misfits.__getitem__)
    fitting = [form for form in misfits if misfits[form] == 0 and form != "index1"]
    if best == "index1" or any(read[form] != read[best] for form in fitting):
        say = " or ".join(f"answer_{form}={column}" for form in fitting or ["index1"])
        raise InputError(f"it is not clear how to read the answers; say --columns {say}")
    return best


def _listed(headers: Iterable[str]) -> str:
    return f"its columns are {shorten(', '.join(map(quote, headers)), 200)}"
