"""How a file is written: whole, or not at all. What was there stays until the new one is whole."""

from __future__ import annotations

import os
from pathlib import Path

from minise.errors import InputError


def write_file(path: Path, content: str | bytes) -> None:
    """Write a file under a temporary name beside it, and rename it. /dev/stdout is written
    directly. Raises InputError that names the file."""
    data = content if isinstance(content, bytes) else content.encode(errors="backslashreplace")
    partial = path.with_name(f".minise-{os.getpid()}.partial")
    try:
        if path.is_relative_to("/dev"):
            path.write_bytes(data)
            return
        try:
            partial.write_bytes(data)
            os.replace(partial, path)
        finally:
            partial.unlink(missing_ok=True)
    except BrokenPipeError:  # the reader is gone
        raise
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise InputError(f"{path}: could not be written ({reason}); choose another place") from None
