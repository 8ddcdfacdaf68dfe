"""One format of questions, and the files that it is read from.

A file is .jsonl (one object per line), .json (an object or a list of them), .csv or .parquet, with

- question: text;
- choices: a list of two or more texts, in which the right one stands once; in CSV choice_1,
  choice_2, ..., where a row with fewer choices leaves the last cells empty;
- answer: the index of the right choice, counted from 0; only an evaluation needs it;
- id: optional, text or a whole number; without it, a hash of question and choices.

Other columns are ignored.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import re
from pathlib import Path
from typing import Any

from minise.errors import InputError, one_line
from minise.question import Question

Row = dict[str, Any]
Rows = list[tuple[str, Any]]  # place ("line 3") and value: a Row, or what stands there instead

KINDS = "a .jsonl, .json, .csv or .parquet file"
_TYPES: dict[type, str] = {str: "text", int: "a whole number", list: "a list", dict: "an object"}


def read_rows(path: Path, label: str) -> tuple[Rows, str]:
    """The rows of a file, which messages call `label`, and the file's SHA-256.

    A row that cannot be read stands in its place as an InputError. Raises InputError for a file
    that is missing, empty, of another kind or not readable.
    """
    kind = path.suffix.lower()
    if kind not in _READERS:
        raise InputError(f"{path}: is not {KINDS}; turn it into one")
    try:
        content = path.read_bytes()
        rows = _READERS[kind](content)
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except (OSError, ValueError, csv.Error, RecursionError) as error:
        reason = f"not readable as {kind[1:].upper()} ({one_line(error)})"
        raise InputError(f"{label}: {reason}") from None
    if not rows:
        raise InputError(f"{label}: is empty; give a file with a row for each question")
    word = "line" if kind == ".jsonl" else "row"
    return [(f"{word} {i}", row) for i, row in rows.items()], hashlib.sha256(content).hexdigest()


def read_question(path: Path) -> Question:
    """The one question of a file, with or without an answer: what `minise ask --file` asks.

    Raises InputError that names the file for more than one row, an unknown field (a misspelt one
    would be ignored in silence), and whatever else is wrong with it.
    """
    rows, _ = read_rows(path, str(path))
    form = '{"question": "...", "choices": ["...", "..."]}'
    if len(rows) > 1:
        raise InputError(f"{path}: holds {len(rows)} rows; give one question, {form}")
    ((_, row),) = rows
    try:
        if not isinstance(row, dict):
            raise (
                row if isinstance(row, InputError) else InputError(f"holds no object; write {form}")
            )
        if unknown := sorted(set(row) - {"question", "choices", "id", "answer"}):
            raise InputError(f'unknown field "{unknown[0]}"; write {form}')
        return to_question(row, needs_answer=False)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def to_question(row: Row, needs_answer: bool = True) -> Question:
    """The question in a row of our format. Raises InputError that names the field at fault."""
    text, choices = field(row, "question", str), field(row, "choices", list)
    has_answer = needs_answer or row.get("answer") is not None
    answer = field(row, "answer", int) if has_answer else None
    if len(choices) < 2:
        raise InputError(f"choices: {len(choices)}; at least 2 are needed")
    identity = "" if row.get("id") in (None, "") else str(field(row, "id", str, int))
    question = Question(text, choices, identity, answer)
    try:
        "".join([identity, text, *choices]).encode()
    except UnicodeEncodeError:
        raise InputError("holds text that is not UTF-8; save the file as UTF-8") from None
    plain = [choice.strip() for choice in choices]
    if answer is not None and plain.count(plain[answer]) > 1:
        raise InputError(f"two choices are {brief(plain[answer])}, the right one")
    return question


def field(row: Row, name: str, *kinds: type) -> Any:
    """A value that must be there, of one of these types, and not blank."""
    value = row.get(name)
    if value is None:
        raise InputError(f"{name} is missing")
    if isinstance(value, str) and not value.strip():
        raise InputError(f"{name} is empty")
    if not isinstance(value, kinds) or isinstance(value, bool):
        raise InputError(f"{name} is {brief(value)}; it must be {_TYPES[kinds[0]]}")
    return value


def brief(value: Any) -> str:
    """A value as JSON, cut short."""
    text = json.dumps(value, default=str)
    return text if len(text) <= 60 else f"{text[:60]}..."


# A reader gives a file's rows by their numbers, counted from 1.


def _read_jsonl(content: bytes) -> dict[int, Any]:
    rows: dict[int, Any] = {}
    for number, line in enumerate(_text(content).split("\n"), 1):
        try:
            if line.strip():
                rows[number] = json.loads(line)
        except (ValueError, RecursionError) as error:
            rows[number] = InputError(f"not JSON ({error})")
    return rows


def _read_json(content: bytes) -> dict[int, Any]:
    values = json.loads(_text(content)) if content.strip() else []
    if not isinstance(values, dict | list):
        raise ValueError('it holds no object and no list; write [{"question": ...}, ...]')
    return dict(enumerate(values if isinstance(values, list) else [values], 1))


def _read_csv(content: bytes) -> dict[int, Any]:
    # Strict: otherwise a quotation mark that is never closed swallows the rows after it.
    lines = csv.reader(io.StringIO(_text(content), newline=""), strict=True)
    header, *table = [cells for cells in lines if cells] or [[]]
    _check_unique(header)
    found = [column for column in header if re.fullmatch(r"choice_\d+", column)]
    numbered = [f"choice_{i}" for i in range(1, len(found) + 1)]
    if set(found) != set(numbered):
        raise ValueError(f"its choices are {', '.join(found)}; number them choice_1, choice_2, ...")
    rows: dict[int, Any] = {}
    for number, cells in enumerate(table, 1):
        if len(cells) != len(header):
            rows[number] = InputError(f"has {len(cells)} cells, but the header {len(header)}")
            continue
        rows[number] = row = dict[str, Any](zip(header, cells, strict=True))
        if numbered:
            row["choices"] = [row.pop(column) for column in numbered]
            while row["choices"] and not row["choices"][-1].strip():
                row["choices"].pop()
        if re.fullmatch("-?[0-9]{1,9}", row.get("answer", "")):
            row["answer"] = int(row["answer"])
    return rows


def _read_parquet(content: bytes) -> dict[int, Any]:
    try:
        import pyarrow.parquet

        table = pyarrow.parquet.ParquetFile(pyarrow.BufferReader(content)).read()
    except ModuleNotFoundError:
        raise ValueError("it needs pyarrow: pip install 'minise[eval]'") from None
    except pyarrow.ArrowException as error:
        raise ValueError(str(error)) from None
    _check_unique(table.column_names)
    return dict(enumerate(table.to_pylist(), 1))


def _text(content: bytes) -> str:
    # Bytes that are not UTF-8 become lone surrogates, so that the row that holds them is named.
    return content.decode("utf-8-sig", errors="surrogateescape")


def _check_unique(columns: list[str]) -> None:
    # Several columns without a name are harmless: nothing is read from them.
    if twice := next((column for column in columns if columns.count(column) > 1), None):
        raise ValueError(f'its column "{twice}" is there twice')


_READERS = {
    ".jsonl": _read_jsonl,
    ".json": _read_json,
    ".csv": _read_csv,
    ".parquet": _read_parquet,
}
