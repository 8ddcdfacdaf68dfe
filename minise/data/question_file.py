"""Files of questions: .jsonl (one object per line), .json (an object or a list of them), .csv,
.tsv or .parquet. rows.py says what a row holds.

In CSV a comma, a semicolon or a tab separates the cells: whichever the header has most of.
"-" is standard input, whose kind is that of its content.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import re
import stat
import sys
from collections import Counter
from collections.abc import Collection
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO

from minise.data.rows import FIELDS, Row, is_choice, own_row, to_question
from minise.errors import InputError, one_line, quote
from minise.question import Question

Rows = list[tuple[str, Any]]  # place ("line 3") and value: a Row, or what stands there instead

STDIN = Path("-")
MOST_MIB = 256  # of a file, and of the text that it becomes; a data set of the paper has 9
MOST_ROWS = 1_000_000
KINDS = "a .jsonl, .json, .csv, .tsv or .parquet file"


def read_rows(path: Path, label: str, columns: Collection[str] = FIELDS) -> tuple[Rows, str]:
    """The rows of a file, which messages call `label`, and the file's SHA-256.

    Of Parquet only `columns` are read; the others are None. A row that cannot be read stands in its
    place as an InputError. Raises InputError for a file that is missing, empty, too large, of
    another kind or not readable.
    """
    kind = path.suffix.lower()
    if path != STDIN and kind not in (*_READERS, ".parquet"):
        raise InputError(f"{path}: is not {KINDS}; turn it into one")
    try:
        if path == STDIN:
            content = _read_stdin(sys.stdin.buffer)
            kind = _kind(content)
        else:
            about = path.stat()
            if not stat.S_ISREG(about.st_mode):
                raise ValueError("it is a folder or a device; give a file")
            _check_size(about.st_size)
            content = path.read_bytes()
        rows = _read_parquet(content, columns) if kind == ".parquet" else _READERS[kind](content)
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except (OSError, ValueError, csv.Error, RecursionError, MemoryError) as error:
        reason = f"not readable as {kind[1:].upper()} ({one_line(error)})"
        raise InputError(f"{label}: {reason}") from None
    if not rows:
        raise InputError(f"{label}: is empty; give a file with a row for each question")
    word = "line" if kind == ".jsonl" else "row"
    return [(f"{word} {i}", row) for i, row in rows.items()], hashlib.sha256(content).hexdigest()


def read_question(path: Path) -> Question:
    """The one question of a file, with or without an answer: what `minise ask --file` asks.

    Raises InputError that names the file for more than one row, and for what is wrong with it.
    """
    label = "standard input" if path == STDIN else str(path)
    rows, _ = read_rows(path, label)
    form = '{"question": "...", "choices": ["...", "..."]}'
    if len(rows) > 1:
        several = "give one question, or ask all of them with minise eval --task FILE"
        raise InputError(f"{label}: holds {len(rows):,} rows; {several}")
    ((_, row),) = rows
    try:
        if not isinstance(row, dict):
            raise (
                row if isinstance(row, InputError) else InputError(f"holds no object; write {form}")
            )
        return to_question(own_row(row), needs_answer=False)
    except InputError as error:
        raise InputError(f"{label}: {error}") from None


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
    text = _text(content)
    head = re.sub('"[^"]*"', "", text.lstrip().partition("\n")[0])
    mark = max(",;\t", key=head.count)  # of equal ones the comma
    lines = csv.reader(io.StringIO(text, newline=""), strict=True, delimiter=mark)
    header, *table = [cells for cells in lines if cells] or [[]]
    header = [column.strip() for column in header]
    _check_unique(header)
    rows: dict[int, Any] = {}
    for number, cells in enumerate(table, 1):
        if len(cells) != len(header):
            rows[number] = InputError(f"has {len(cells)} cells, but the header {len(header)}")
            continue
        rows[number] = dict(zip(header, cells, strict=True))
    return rows


def _read_parquet(content: bytes, columns: Collection[str]) -> dict[int, Any]:
    # A file of 2 kB can hold a text of megabytes, once, and a million rows that are this text.
    # So texts are read as references, and counted before they are copied.
    try:
        import pyarrow
        from pyarrow import parquet
    except ModuleNotFoundError:
        raise ValueError("it needs pyarrow: pip install 'minise[eval]'") from None
    try:
        source = pyarrow.BufferReader(content)
        facts = parquet.read_metadata(source)
        names = facts.schema.to_arrow_schema().names
        wanted = [c for c in names if c in columns or c.lower() in FIELDS or is_choice(c)]
        groups = [facts.row_group(i) for i in range(facts.num_row_groups)]
        chunks = [group.column(i) for group in groups for i in range(facts.num_columns)]
        read = [chunk for chunk in chunks if chunk.path_in_schema.split(".")[0] in wanted]
        _check_unique(names)
        if max(facts.num_rows, sum(chunk.num_values for chunk in read) // 20) > MOST_ROWS:
            raise ValueError(
                f"it holds {facts.num_rows:,} rows; at most {MOST_ROWS:,} of 20 values"
            )
        size = sum(chunk.total_uncompressed_size for chunk in read)
        _check_size(size)
        texts = {c.path_in_schema for c in read if c.physical_type == "BYTE_ARRAY"}
        file = parquet.ParquetFile(source, metadata=facts, read_dictionary=sorted(texts))
        rows: list[Row] = []
        for batch in file.iter_batches(1000, columns=wanted):
            size += sum(map(_text_size, batch.columns))
            _check_size(size)
            rows += [dict.fromkeys(names) | row for row in batch.to_pylist()]
    except Exception as error:  # pyarrow raises exceptions of many classes
        raise ValueError(one_line(error)) from None
    return dict(enumerate(rows, 1))


@lru_cache(1)  # it can be read once, and each seed of an evaluation loads its tasks
def _read_stdin(stream: BinaryIO) -> bytes:
    content = stream.read((MOST_MIB << 20) + 1)
    _check_size(len(content))
    return content


def _kind(content: bytes) -> str:
    """The ending that a file of this content would have."""
    if content[:4] == b"PAR1":
        return ".parquet"
    first, *more = content.removeprefix(b"\xef\xbb\xbf").split(b"\n", 1)
    if first.lstrip()[:1] not in (b"{", b"["):
        return ".csv"
    try:  # the first line is a whole object, and another one follows
        return ".jsonl" if isinstance(json.loads(first), dict) and more[0].strip() else ".json"
    except (ValueError, RecursionError, IndexError):
        return ".json"


def _text_size(array: Any) -> int:
    """The bytes of an array's texts, each counted as often as it stands there."""
    import pyarrow
    from pyarrow import compute

    kind = array.type
    if pyarrow.types.is_dictionary(kind):
        lengths = compute.binary_length(array.dictionary).take(array.indices)
        return compute.sum(lengths).as_py() or 0
    if pyarrow.types.is_struct(kind):
        return sum(map(_text_size, array.flatten()))
    return _text_size(array.flatten()) if pyarrow.types.is_nested(kind) else array.nbytes


def _text(content: bytes) -> str:
    # Bytes that are not UTF-8 become lone surrogates, so that the row that holds them is named.
    return content.decode("utf-8-sig", errors="surrogateescape")


def _check_unique(columns: list[str]) -> None:
    # Several columns without a name are harmless: nothing is read from them.
    if twice := next((c for c, count in Counter(columns).items() if c and count > 1), None):
        raise ValueError(f"its column {quote(twice)} is there twice")


def _check_size(size: int) -> None:
    if size > MOST_MIB << 20:
        raise ValueError(f"it holds {size / 2**20:,.0f} MiB, over the limit of {MOST_MIB}; cut it")


_READERS = {".jsonl": _read_jsonl, ".json": _read_json, ".csv": _read_csv, ".tsv": _read_csv}
