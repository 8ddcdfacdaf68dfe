"""Refuse what would not fit in memory, before it is made."""

from __future__ import annotations

import re
from pathlib import Path

from minise.errors import InputError


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
