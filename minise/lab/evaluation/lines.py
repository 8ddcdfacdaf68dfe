"""Files of JSON lines, each line on the disk before the next one is made."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from minise.errors import InputError
from minise.lab.files import json_of, read_file, unwritable

Value = TypeVar("Value")
REMEDY = "delete it and what follows, then run the same command again"


def append_line(file: BinaryIO, value: Any) -> None:
    """Write a value as the last line. When this returns, the disk has it."""
    file.write(json.dumps(value).encode() + b"\n")
    file.flush()
    os.fsync(file.fileno())


def read_lines(path: Path, value_of: Callable[[Any], Value]) -> list[Value]:
    """What the whole lines of a file hold, none if there is no file; value_of makes it of the JSON
    of a line. What a kill has left of a last line is not read. Raises InputError that names a line
    that is no JSON, or that value_of refuses."""
    content = read_file(path) or b""
    whole = content[: content.rfind(b"\n") + 1]
    values = []
    for number, line in enumerate(whole.splitlines(), 1):
        try:
            values.append(value_of(json_of(line)))
        except (ValueError, RecursionError) as error:  # also InputError
            reason = error if isinstance(error, InputError) else "it is no JSON"
            raise InputError(f"{path}, line {number}: {reason}; {REMEDY}") from None
    return values


def open_lines(path: Path, next_line: str) -> BinaryIO:
    """The file, to append lines to. What a kill has left of a last line is cut off. next_line: how
    that line begins. Raises InputError for any other rest, for then the file may be another's, and
    for a file that cannot be written."""
    content = read_file(path) or b""
    whole = content.rfind(b"\n") + 1
    rest = content[whole:]
    wanted = next_line.encode()
    if not (rest.startswith(wanted) or wanted.startswith(rest)):
        remedy = "delete it, or choose another folder"
        raise InputError(f"{path}: its last line is none of this run; {remedy}")
    try:
        file = path.open("ab")
        file.truncate(whole)
    except OSError as error:
        raise unwritable(path, error) from None
    return file
