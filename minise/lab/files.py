"""How a file is read, and how it is written: whole, or not at all. What was there stays until the
new one is whole."""

from __future__ import annotations

import json
import os
import platform
from contextlib import suppress
from pathlib import Path
from typing import Any

from minise.errors import InputError, quote

PARTIAL = f".minise-{platform.node()}-"  # other machines may write into the same folder


def read_file(path: Path) -> bytes | None:
    """What a file holds; None if there is none. Raises InputError for what is no file, such as a
    folder, a pipe or a link that leads nowhere, and for a file that cannot be read."""
    if not os.path.lexists(path):
        return None
    if not os.path.isfile(path):
        raise InputError(f"{path}: is no file; move it away")
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: could not be read ({words(error)}); make it readable") from None


def json_of(content: bytes) -> Any:
    """What JSON says. Raises ValueError for what is none, and InputError for half of a surrogate
    pair: JSON can write it as an escape, but no file and no table could hold it."""
    value = json.loads(content)
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        before = error.object[: error.start][-30:]
        raise InputError(f"after {quote(before)} is no text, half of a surrogate pair") from None
    return value


def words(error: OSError) -> str:
    return error.strerror or type(error).__name__


def unwritable(path: Path, error: OSError) -> InputError:
    return InputError(f"{path}: could not be written ({words(error)}); choose another place")


def make_folder(folder: Path) -> None:
    """The folder, if there is none yet. Raises InputError that names it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise unwritable(folder, error) from None


def remove_left(folder: Path) -> None:
    """Remove what processes that were killed have left in a folder."""
    for left in folder.glob(f"{PARTIAL}*.partial"):
        process = left.stem.removeprefix(PARTIAL)
        with suppress(OSError):  # it may be another user's
            if not os.path.exists(f"/proc/{process}"):
                left.unlink()


def write_file(path: Path, content: str | bytes) -> None:
    """Write a file under a temporary name beside it, and rename it; /dev/stdout directly. Such
    files of processes that were killed are removed. Raises InputError that names the file."""
    data = content if isinstance(content, bytes) else content.encode(errors="backslashreplace")
    partial = path.with_name(f"{PARTIAL}{os.getpid()}.partial")
    try:
        if path.is_relative_to("/dev"):
            path.write_bytes(data)
            return
        if os.path.exists("/proc/self"):
            remove_left(path.parent)
        try:
            partial.write_bytes(data)
            os.replace(partial, path)
        finally:
            partial.unlink(missing_ok=True)
    except BrokenPipeError:  # the reader is gone
        raise
    except OSError as error:
        raise unwritable(path, error) from None
