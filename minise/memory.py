"""Refuse what would not fit in memory, before it is made; and what says that it did not fit."""

from __future__ import annotations

import re
from pathlib import Path

from minise.errors import InputError

NO_MEMORY = re.compile("out of memory|not enough memory|allocate memory", re.IGNORECASE)


def free_bytes() -> int | None:
    """Bytes of memory that are free; None where the system does not tell."""
    path = Path("/proc/meminfo")
    found = re.search(r"MemAvailable: +(\d+)", path.read_text()) if path.exists() else None
    return int(found[1]) * 1024 if found else None


def check_mask_fits(tokens: int) -> None:
    """Refuse a mask of tokens x tokens cells, one byte each, that does not fit in memory twice:
    whole, and cut into chunks."""
    size, free = 2 * tokens**2, free_bytes()
    if free is not None and size > free:
        raise InputError(
            f"{tokens:,} packed tokens need a mask of {tokens**2:,} cells, {size / 2**30:.1f} GiB, "
            f"and {free / 2**30:.1f} GiB are free; use fewer trials, or the engine separate"
        )


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says so: of Python, or of torch, whose errors are RuntimeErrors."""
    is_of_torch = isinstance(error, RuntimeError) and NO_MEMORY.search(str(error)) is not None
    return is_of_torch or isinstance(error, MemoryError)
