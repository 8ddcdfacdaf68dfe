"""Files of questions: .jsonl (one object per line), .json (an object or a list of them), .csv,
.tsv or .parquet. rows.py describes a row.

In CSV a comma, a semicolon or a tab separates the cells: whichever the header has most of.
"-" is standard input, whose format is recognized by its content. Text is UTF-8, or UTF-16 with a
byte order mark.
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
from collections.abc import Collection, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO

from minise.data.rows import FIELDS, Row, is_choice, read_row, to_question, with_names
from minise.errors import InputError, one_line, quote
from minise.question import Question

Rows = list[tuple[str, Any]]  # place ("line 3") and value: a Row, or whatever the file has there

STDIN = Path("-")
MOST_MIB = 256  # of a file, and of its text in memory; the largest data set of the paper has 9
MOST_ROWS = 1_000_000
ENDINGS = (".jsonl", ".json", ".csv", ".tsv", ".parquet")
KINDS = "a .jsonl, .json, .csv, .tsv or .parquet file"


def read_rows(path: Path, label: str, columns: Collection[str] = FIELDS) -> tuple[Rows, str]:
    """The rows of a file, which messages call `label`, and the file's SHA-256.

    Of Parquet only `columns` are read; the others are None. A row that cannot be read is replaced
    by an InputError. Raises InputError for a file that is missing, empty, too large, of another
    kind or not readable.
    """
    kind = path.suffix.lower()
    if path != STDIN and kind not in ENDINGS:
        raise InputError(f"{path}: is not {KINDS}; turn it into one")
    try:
        if path == STDIN:
            content = _read_stdin(sys.stdin.buffer)
            kind = _kind(content)
        else:
            status = path.stat()
            if not stat.S_ISREG(status.st_mode):
                raise ValueError("it is a folder or a device; give a file")
            _check_size(status.st_size)
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


def read_question(
    path: Path, columns: Mapping[str, str] | None = None, form: str | None = None
) -> Question:
    """The one question of a file, with or without an answer, for `minise ask --file`. columns: see
    `with_names` in rows.py; form: see `read_row` there.

    Raises InputError that names the file if it has more than one row, or a malformed one.
    """
    label = "standard input" if path == STDIN else str(path)
    columns = columns or {}
    rows, _ = read_rows(path, label, {*FIELDS, *columns.values()})
    example = '{"question": "...", "choices": ["...", "..."]}'
    if len(rows) > 1:
        several = "give one question, or ask all of them with minise eval --task FILE"
        raise InputError(f"{label}: holds {len(rows):,} rows; {several}")
    try:
        ((_, row),) = with_names(rows, columns)
        if isinstance(row, InputError):
            raise row
        if not isinstance(row, dict):
            raise InputError(f"holds no object; write {example}")
        return to_question(read_row(row, form), needs_answer=False)
    except InputError as error:
        raise InputError(f"{label}: {error}") from None


# A reader returns a file's rows by their numbers, counted from 1.


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
    delimiter = max(",;\t", key=head.count)  # of equal ones the comma
    lines = csv.reader(io.StringIO(text, newline=""), strict=True, delimiter=delimiter)
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
    # A file of 2 kB can hold one text of megabytes and a million rows that refer to it. So texts
    # are read as references, and their sizes are added up before they are copied.
    try:
        import pyarrow
        from pyarrow import parquet
    except ModuleNotFoundError:
        raise ValueError("it needs pyarrow: pip install 'minise[eval]'") from None
    try:
        source = pyarrow.BufferReader(content)
        metadata = parquet.read_metadata(source)
        names = metadata.schema.to_arrow_schema().names
        _check_unique(names)
        needed = [c for c in names if c in columns or c.lower() in FIELDS or is_choice(c)]
        chunks = _chunks(metadata, needed)
        if max(metadata.num_rows, sum(chunk.num_values for chunk in chunks) // 20) > MOST_ROWS:
            raise ValueError(
                f"it holds {metadata.num_rows:,} rows; at most {MOST_ROWS:,} of 20 values"
            )
        size = sum(chunk.total_uncompressed_size for chunk in chunks)
        _check_size(size)
        texts = {c.path_in_schema for c in chunks if c.physical_type == "BYTE_ARRAY"}
        file = parquet.ParquetFile(source, metadata=metadata, read_dictionary=sorted(texts))
        rows: list[Row] = []
        for batch in file.iter_batches(1000, columns=needed):
            size += sum(map(_text_size, batch.columns))
            _check_size(size)
            rows += [dict.fromkeys(names) | row for row in batch.to_pylist()]
    except Exception as error:  # pyarrow raises exceptions of many classes
        raise ValueError(one_line(error)) from None
    return dict(enumerate(rows, 1))


def _chunks(metadata: Any, columns: Collection[str]) -> list[Any]:
    """What a Parquet file says of its chunks of these columns, a chunk per column and row group."""
    chunks = []
    for i in range(metadata.num_row_groups):
        for j in range(metadata.num_columns):
            chunk = metadata.row_group(i).column(j)
            if chunk.path_in_schema.split(".")[0] in columns:
                chunks.append(chunk)
    return chunks


@lru_cache(1)  # it can be read only once, and an evaluation loads its tasks for each seed
def _read_stdin(stream: BinaryIO) -> bytes:
    content = stream.read((MOST_MIB << 20) + 1)
    _check_size(len(content))
    return content


def _kind(content: bytes) -> str:
    """The ending that a file of this content would have."""
    if content[:4] == b"PAR1":
        return ".parquet"
    first, *more = _text(content).split("\n", 1)
    if first.lstrip()[:1] not in ("{", "["):
        return ".csv"
    try:  # the first line is a whole object, and another one follows
        return ".jsonl" if isinstance(json.loads(first), dict) and more[0].strip() else ".json"
    except (ValueError, RecursionError, IndexError):
        return ".json"


def _text_size(array: Any) -> int:
    """The bytes of an array's texts; a text that occurs twice counts twice."""
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
    if content[:2] in (b"\xff\xfe", b"\xfe\xff"):  # as spreadsheets save "Unicode text"
        return content.decode("utf-16", errors="surrogatepass")
    if b"\0" in content[:4]:
        raise ValueError("it seems to be UTF-16 without a byte order mark; save it as UTF-8")
    # Bytes that are not UTF-8 become lone surrogates, so that the message can name their row.
    return content.decode("utf-8-sig", errors="surrogateescape")


def _check_unique(columns: list[str]) -> None:
    # Several columns without a name are harmless: nothing is read from them.
    for column, count in Counter(columns).items():
        if column and count > 1:
            raise ValueError(f"two of its columns are called {quote(column)}")


def _check_size(size: int) -> None:
    if size > MOST_MIB << 20:
        raise ValueError(f"it holds {size / 2**20:,.0f} MiB, over the limit of {MOST_MIB}; cut it")


_READERS = {".jsonl": _read_jsonl, ".json": _read_json, ".csv": _read_csv, ".tsv": _read_csv}
