"""How far a long loop is: a bar on a terminal, a line now and then anywhere else."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Generator, Sequence
from typing import TypeVar

from tqdm import tqdm

from minise.errors import printable, rank, say

T = TypeVar("T")
PAUSE = 30.0  # seconds: a shorter run prints no line
LONG = 600.0  # seconds: a line at least so often


def progress(
    items: Sequence[T], what: str, unit: str, beside: Callable[[], str] = str
) -> Generator[T, None, None]:
    """The items one after the other. Where stderr is no terminal, as in a log file, a line is
    printed there when another 10% are done: at most every 30 seconds, at least every 10 minutes.
    The text of `beside` is shown, too. Of many processes, only number 0 shows anything."""
    if rank():
        yield from items
        return
    if sys.stderr.isatty():
        with tqdm(items, printable(what), unit=unit, leave=False) as bar:
            for item in bar:
                bar.set_postfix_str(beside())
                yield item
        return
    start = last_line = time.monotonic()
    last_tenth = 0
    for number, item in enumerate(items):
        now, tenth = time.monotonic(), 10 * number // len(items)
        if number and now - last_line >= (PAUSE if tenth > last_tenth else LONG):
            left = duration((now - start) * (len(items) / number - 1))
            more = f", {beside()}" if beside() else ""
            rate = f"{number:,} of {len(items):,} {unit}s{more}, about {left} left"
            say(f"{what}: {rate}")
            last_line, last_tenth = now, tenth
        yield item


def duration(seconds: float) -> str:
    return f"{seconds / 60:.0f} minutes" if seconds >= 90 else f"{seconds:.0f} seconds"
