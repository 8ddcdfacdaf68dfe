"""How files are written: whole, or not at all."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from minise.errors import InputError, one_line


def write_file(path: Path, content: str | bytes) -> None:
    """Write a file beside `path`, which then takes its place: whoever reads it meanwhile sees the
    old content or the new one. A link, a device or a pipe is written directly. Raises InputError
    that names the file."""
    # Half a surrogate pair, from a file name that is not UTF-8, becomes JSON's escape.
    data = content if isinstance(content, bytes) else content.encode(errors="backslashreplace")
    partial = path.with_name(f".minise-{os.getpid()}.partial")
    try:
        if path.is_symlink() or (path.exists() and not path.is_file()):
            path.write_bytes(data)
            return
        partial.write_bytes(data)
        os.replace(partial, path)
    except BrokenPipeError:  # the reader is gone
        raise
    except OSError as error:
        with suppress(OSError):
            partial.unlink()
        reason = error.strerror or one_line(error)
        raise InputError(
            f"{path}: could not be written ({reason}); check disk and permissions, then run the "
            "command again"
        ) from None


def read_bytes(path: Path) -> bytes:
    """The content of a file. Raises OSError that names it, also where only reading fails."""
    try:
        return path.read_bytes()
    except OSError as error:
        error.filename = str(path)
        raise


def json_text(value: Any, **layout: Any) -> str:
    """A value as JSON. `layout`: arguments of json.dumps. Raises InputError for a number that is
    not finite, because JSON has none."""
    try:
        return json.dumps(value, allow_nan=False, **layout)
    except ValueError as error:
        reason = f"cannot be written as JSON ({one_line(error)})"
        raise InputError(f"the result {reason}; try --dtype float32, or other settings") from None
