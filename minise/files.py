"""How every file is written: it has all of its old content or all of the new one, whatever fails,
and also after a loss of power. No other module opens a file for writing.
"""

from __future__ import annotations

import errno
import json
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from minise.errors import InputError, quote

AGAIN = "run the command again"
_STREAMS = {"/dev/stdout": 1, "/dev/stderr": 2}
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_FORBIDDEN = (errno.EACCES, errno.EPERM, errno.EROFS)
_NO_SYNC = (errno.EINVAL, errno.ENOTSUP, errno.EROFS)


def write_file(path: Path, content: str | bytes, then: str = AGAIN) -> int:
    """Write a file and return its size in bytes. It is on the disk when this returns.

    A link stays, and the file that it names is written. An existing file keeps its permissions. A
    device or a pipe is written directly. Raises InputError that names the file, says why, and ends
    in `then`, what to do after that; the file then has its old content, or the new one if only the
    folder's entry may not be on the disk yet.
    """
    data = _encoded(content)
    try:
        if str(path) in _STREAMS:  # a file, too: what is printed later follows
            with open(os.dup(_STREAMS[str(path)]), "wb") as file:
                file.write(data)
        elif (mode := _mode(path)) is None or stat.S_ISREG(mode):
            _replace(Path(os.path.realpath(path)), data, mode)
        else:
            with open(path, "wb") as file:
                file.write(data)
    except BrokenPipeError:  # the reader is gone
        raise
    except OSError as error:
        raise _refusal(path, error, then) from None
    return len(data)


def append_text(path: Path, text: str, then: str = AGAIN) -> None:
    """Append to a file. The text is on the disk when this returns. Raises InputError as
    `write_file` does; the file then has its old content."""
    size = None
    try:
        with path.open("ab") as file:
            size = file.tell()
            if size == 0:
                sync_folder(path.parent)
            file.write(_encoded(text))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        if size is not None:  # what was written may be in memory alone
            with suppress(OSError):
                os.truncate(path, size)
        raise _refusal(path, error, then) from None


def cut_file(path: Path, size: int, then: str = AGAIN) -> None:
    """Cut a file after `size` bytes. Raises InputError as `write_file` does."""
    try:
        os.truncate(path, size)
    except OSError as error:
        raise _refusal(path, error, then) from None


def make_folder(folder: Path) -> None:
    """Create a folder and those above it, if they are missing. They are on the disk when this
    returns. Raises InputError."""
    try:
        missing = [one for one in folder.parents if not one.exists()]
        for one in (*reversed(missing), folder):
            one.mkdir(exist_ok=True)
            sync_folder(one.parent)
    except OSError as error:
        reason = f"could not be written ({_reason(error)})"
        raise InputError(f"{folder}: {reason}; choose another folder") from None


def sync_folder(folder: Path) -> None:
    """Bring to the disk which files a folder has. Does nothing where the system cannot."""
    try:
        number = os.open(folder, os.O_RDONLY)
    except PermissionError:  # Windows, or a folder that may be written and not be read
        return
    try:
        os.fsync(number)
    except OSError as error:
        if error.errno not in _NO_SYNC:
            error.filename = str(folder)  # the system does not name it
            raise
    finally:
        os.close(number)


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Let an OSError of the block name the file: the system does not where only reading fails."""
    try:
        yield
    except OSError as error:
        error.filename = str(path)
        raise


def read_bytes(path: Path) -> bytes:
    """The content of a file. Raises OSError that names it."""
    with reading(path):
        return path.read_bytes()


def json_text(value: Any, **layout: Any) -> str:
    """A value as JSON. `layout`: arguments of json.dumps.

    Raises InputError for a number that is not finite, because JSON has none, and says where it is.
    """
    try:
        return json.dumps(value, allow_nan=False, **layout)
    except ValueError:
        if not (place := _not_finite(value)):
            raise
        problem = f"{quote(place)} is not a finite number, so it cannot be written"
        raise InputError(f"{problem}; try --dtype float32, or other settings") from None


def _not_finite(value: Any, place: str = "") -> str:
    """Where a value has the first number that is not finite, such as "results.words.nll"."""
    if isinstance(value, float):
        return "" if abs(value) < float("inf") else place.lstrip(".") or "the value"
    if not isinstance(value, dict | list | tuple):
        return ""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    return next(filter(None, (_not_finite(one, f"{place}.{name}") for name, one in items)), "")


def _replace(path: Path, data: bytes, mode: int | None) -> None:
    """Write a file beside `path`, which then takes its place. `mode`: of `path`, if it exists."""
    if mode is not None and not os.access(path, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    # A name of its own, because several processes may write one file. It is short, because the
    # name of `path` may be as long as the system allows.
    partial = path.with_name(f".minise-{os.getpid()}-{secrets.token_hex(4)}.partial")
    try:
        with partial.open("xb") as file:
            if mode is not None and stat.S_IMODE(mode) != stat.S_IMODE(os.stat(partial).st_mode):
                os.chmod(partial, stat.S_IMODE(mode))
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except BaseException:
        with suppress(OSError):
            partial.unlink()
        raise
    sync_folder(path.parent)


def _mode(path: Path) -> int | None:
    """What a path is, links followed; None if there is nothing."""
    try:
        return os.stat(path).st_mode
    except FileNotFoundError:
        return None


def _encoded(content: str | bytes) -> bytes:
    # Half a surrogate pair, from a file name that is not UTF-8, becomes JSON's escape.
    return content if isinstance(content, bytes) else content.encode(errors="backslashreplace")


def _refusal(path: Path, error: OSError, then: str) -> InputError:
    remedy = "check the disk"
    if error.errno in _FULL:
        remedy = "make room"
    elif error.errno in _FORBIDDEN:
        remedy = "allow it to be written"
    return InputError(f"{path}: could not be written ({_reason(error)}); {remedy}, then {then}")


def _reason(error: OSError) -> str:
    return error.strerror or type(error).__name__
