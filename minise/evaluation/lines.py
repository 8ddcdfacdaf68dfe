"""Files of JSON lines, each line on the disk before the next one is made."""

import json
import os
from pathlib import Path
from typing import Any, BinaryIO

from minise.errors import InputError
from minise.files import read_file, unwritable


def append_line(file: BinaryIO, value: Any) -> None:
    """Write a value as the last line. When this returns, the disk has it."""
    file.write(json.dumps(value).encode() + b"\n")
    file.flush()
    os.fsync(file.fileno())


def read_lines(path: Path) -> list[bytes]:
    """The whole lines of a file, none if there is no file. What a kill has left of a last line is
    not read."""
    content = read_file(path) or b""
    whole = content[: content.rfind(b"\n") + 1]
    return whole.splitlines()


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
