"""A file of questions becomes rows: .jsonl, .json, .csv or .parquet, each row with its place."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from minise.errors import InputError
from minise.source import one_line

Row = dict[str, Any]
KINDS = "a .jsonl, .json, .csv or .parquet file"
# A row is what to call it, and its columns, or why it cannot be read.
Rows = list[tuple[str, Row | InputError]]


def read_rows(path: Path, label: str) -> tuple[Rows, str]:
    """The rows of a file, called `label` in errors, and its sha256.

    Raises InputError for a file that is missing, empty, of another kind or not readable as its own;
    a row that cannot be read stands among the others, as its InputError.
    """
    read = _READERS.get(path.suffix.lower())
    if read is None:
        raise InputError(f"{path}: is not {KINDS}; turn it into one")
    try:
        content = path.read_bytes()
        rows = read(content)
    except InputError:
        raise
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except (OSError, ValueError, csv.Error, RecursionError) as error:
        kind = path.suffix[1:].upper()
        raise InputError(f"{label}: not readable as {kind} ({one_line(error)})") from None
    if not rows:
        raise InputError(f"{label}: is empty; give a file with a row for each question")
    return rows, hashlib.sha256(content).hexdigest()


def _read_jsonl(content: bytes) -> Rows:
    rows: Rows = []
    for number, line in enumerate(_text(content).split("\n"), 1):
        if line.strip():
            try:
                row = _json_row(json.loads(line))
            except (ValueError, RecursionError) as error:
                row = InputError(f"not JSON ({error})")
            rows.append((f"line {number}", row))
    return rows


def _read_json(content: bytes) -> Rows:
    values = json.loads(_text(content)) if content.strip() else []
    if not isinstance(values, list):
        raise ValueError('it holds no list; write [{"question": ...}, ...]')
    return [(f"row {number}", _json_row(value)) for number, value in enumerate(values, 1)]


def _json_row(value: Any) -> Row | InputError:
    return value if isinstance(value, dict) else InputError(f"is {brief(value)}, not an object")


def _read_csv(content: bytes) -> Rows:
    # Strict, or a quotation mark that is never closed would swallow the rows after it.
    lines = csv.reader(io.StringIO(_text(content), newline=""), strict=True)
    header, *records = [cells for cells in lines if cells] or [[]]
    _check_unique(header)
    numbered = [column for column in header if re.fullmatch(r"choice_\d+", column)]
    if set(numbered) != {f"choice_{i}" for i in range(1, len(numbered) + 1)}:
        raise ValueError(
            f"its choices are {', '.join(numbered)}; number them choice_1, choice_2, ..."
        )
    return [
        (
            f"row {number}",
            _typed(dict(zip(header, cells, strict=True)), len(numbered))
            if len(cells) == len(header)
            else InputError(f"has {len(cells)} cells, but the header {len(header)}"),
        )
        for number, cells in enumerate(records, 1)
    ]


def _typed(cells: dict[str, str], numbered: int) -> Row:
    """A row of CSV with the texts choice_1, choice_2, ... as a list, and the answer as a number."""
    row: Row = dict(cells)
    if numbered:
        row["choices"] = [row.pop(f"choice_{i}") for i in range(1, numbered + 1)]
        while row["choices"] and not row["choices"][-1].strip():
            row["choices"].pop()
    if re.fullmatch("-?[0-9]{1,9}", cells.get("answer", "")):
        row["answer"] = int(cells["answer"])
    return row


def _read_parquet(content: bytes) -> Rows:
    try:
        import pyarrow
        import pyarrow.parquet
    except ModuleNotFoundError:
        raise InputError(
            "parquet files need pyarrow, which is not installed: pip install 'minise[eval]'"
        ) from None
    try:
        table = pyarrow.parquet.ParquetFile(pyarrow.BufferReader(content)).read()
    except pyarrow.ArrowException as error:
        raise ValueError(str(error)) from None
    _check_unique(table.column_names)
    return [(f"row {number}", row) for number, row in enumerate(table.to_pylist(), 1)]


_READERS: dict[str, Callable[[bytes], Rows]] = {
    ".jsonl": _read_jsonl,
    ".json": _read_json,
    ".csv": _read_csv,
    ".parquet": _read_parquet,
}


def _text(content: bytes) -> str:
    # What is not UTF-8 becomes lone surrogates, so that the row that holds it can be named.
    return content.decode("utf-8-sig", errors="surrogateescape")


def _check_unique(columns: list[str]) -> None:
    # Columns without a name can be as many as they are: nothing is read from them.
    if twice := next((column for column in columns if columns.count(column) > 1), None):
        raise ValueError(f'its column "{twice}" is there twice')


def brief(value: Any) -> str:
    """A value as JSON, cut short."""
    text = json.dumps(value, default=str)
    return text if len(text) <= 60 else f"{text[:60]}..."
