"""Files of JSON lines, each line on the disk before the next one is made."""

import json
import os
from pathlib import Path
from typing import Any, BinaryIO


def append_line(file: BinaryIO, value: Any) -> None:
    """Write a value as the last line. When this returns, the disk has it."""
    file.write(json.dumps(value).encode() + b"\n")
    file.flush()
    os.fsync(file.fileno())


def read_lines(path: Path, cut: bool = False) -> list[bytes]:
    """The whole lines of a file, none if there is no file. What a kill has left of a last line is
    not read, and is cut off the file with `cut`."""
    content = path.read_bytes() if path.exists() else b""
    whole = content[: content.rfind(b"\n") + 1]
    if cut and len(whole) < len(content):
        os.truncate(path, len(whole))
    return whole.splitlines()
