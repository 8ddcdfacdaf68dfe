"""Files with a row for each question: .jsonl, .json, .csv, .tsv or .parquet, each also as .gz."""

import csv
import gzip
import io
import json
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from minise.errors import InputError, one_line, quote
from minise.loading.plugin import load_extra

Row = dict[str, Any]  # by the headers of the file's columns
SHEETS = (".xlsx", ".xls", ".ods", ".numbers")  # of programs for tables, which nothing here reads
MOST_FILE_BYTES = 256 << 20  # of a file, unpacked; the paper's largest has 9 MiB


@dataclass(frozen=True)
class Placed:
    """A row and its place in the file: "line 3", or "row 3" counted from 1."""

    place: str
    row: Row


def split_name(path: Path) -> tuple[str, str]:
    """The name and the kind of a file: "rows", "jsonl" of "rows.jsonl.gz"; "" for another kind."""
    name, _, kind = path.name.removesuffix(".gz").rpartition(".")
    return name, kind.lower() if kind.lower() in READERS else ""


def read_rows(path: Path) -> list[Placed]:
    """The rows of a file."""
    _, kind = split_name(path)
    if not kind:
        remedy = "save a sheet as .csv" if path.suffix.lower() in SHEETS else "name another"
        raise InputError(
            f"{path}: no task (qasc, ...), no file of .{', .'.join(READERS)}; {remedy}"
        )
    if not os.path.isfile(path):  # a device may never end
        raise InputError(f"{path}: no such file; give the path of one")
    word = "row" if kind in ("json", "parquet") else "line"
    rows = []
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            content = file.read(MOST_FILE_BYTES + 1)
        if len(content) > MOST_FILE_BYTES:
            raise ValueError(f"it holds more than {MOST_FILE_BYTES >> 20} MiB; cut it")
        for number, row in READERS[kind](content):
            rows.append(Placed(f"{word} {number}", row))
    except Exception as error:  # pyarrow raises exceptions of many classes
        raise InputError(f"{path}: not readable as {kind.upper()} ({one_line(error)})") from None
    for placed in rows:
        if not isinstance(placed.row, dict):
            raise InputError(f"{path}, {placed.place}: is {quote(placed.row)}; write an object")
    if not rows:
        raise InputError(f"{path}: is empty; give a file with a row for each question")
    return rows


def _read_jsonl(content: bytes) -> Iterator[tuple[int, Any]]:
    for number, line in enumerate(_text(content).split("\n"), 1):
        try:
            if line.strip():
                yield number, json.loads(line)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"line {number}: {error}") from None


def _read_json(content: bytes) -> Iterable[tuple[int, Any]]:
    values = json.loads(_text(content))
    return enumerate(values if isinstance(values, list) else [values], 1)


def _read_csv(content: bytes) -> Iterator[tuple[int, Any]]:
    """A comma, a semicolon or a tab separates the cells: which one says Excel's first line "sep=;",
    or else it is the one that the header has most of."""
    text = _text(content)
    first_line = re.match(r'"?sep=(.)"?\r?\n', text, re.IGNORECASE)
    if first_line:
        delimiter = first_line[1]
        text = text[first_line.end() :]
    else:
        header = re.sub('"[^"]*"', "", text.lstrip().partition("\n")[0])
        delimiter = max(",;\t", key=header.count)  # of equal ones the comma
    # Strict: otherwise a quotation mark that is never closed swallows the rows after it.
    rows = csv.DictReader(io.StringIO(text, newline=""), strict=True, delimiter=delimiter)
    for row in rows:
        number = rows.line_num + (first_line is not None)
        if None in row or None in row.values():
            raise ValueError(f"line {number} has not as many cells as the header")
        yield number, row


def _read_parquet(content: bytes) -> Iterable[tuple[int, Any]]:
    parquet = load_extra("pyarrow.parquet")
    return enumerate(parquet.read_table(io.BytesIO(content)).to_pylist(), 1)


READERS = {
    "jsonl": _read_jsonl,
    "json": _read_json,
    "csv": _read_csv,
    "tsv": _read_csv,
    "parquet": _read_parquet,
}


def _text(content: bytes) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        how = 'save it as UTF-8, in Excel as "CSV UTF-8"'
        raise ValueError(f"line {line} is not UTF-8, perhaps Windows' CP1252; {how}") from None
