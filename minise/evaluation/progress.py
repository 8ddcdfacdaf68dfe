"""How far a long loop is: a bar on a terminal, a line now and then anywhere else."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TypeVar

from tqdm import tqdm

from minise.errors import printable, say

T = TypeVar("T")
PAUSE = 30.0  # seconds: a shorter run prints no line
LONG = 600.0  # seconds: a line at least so often


@dataclass
class Whole:
    """What several loops have to do together, and how much of it is done, in any unit of work.
    works: of an item of each loop. A total of 0 is not shown."""

    what: str
    works: dict[str, float]
    total: float
    done: float = 0.0
    began: float = field(default_factory=lambda: time.monotonic())

    def left(self) -> float:
        """Seconds, if the rest goes as fast as what is done."""
        return (time.monotonic() - self.began) * (self.total / self.done - 1)


def progress(
    items: Sequence[T],
    what: str,
    unit: str,
    beside: Callable[[], str] = str,
    whole: Whole | None = None,
    work: float = 0.0,
) -> Generator[T, None, None]:
    """The items one after the other. Where stderr is no terminal, as in a log file, a line is
    printed there when another 10% are done: at most every 30 seconds, at least every 10 minutes.
    The text of `beside` is shown, too.

    whole: of this loop and others; each item is so much of its `work`. It has a bar, or an
    estimate, of its own."""
    show = _bars if sys.stderr.isatty() else _lines
    yield from show(items, what, unit, beside, whole or Whole("", {}, 0.0), work)


def _bars(
    items: Sequence[T], what: str, unit: str, beside: Callable[[], str], whole: Whole, work: float
) -> Generator[T, None, None]:
    with ExitStack() as stack:
        above = None
        if whole.total:
            form = "{desc}: {percentage:3.0f}%|{bar}| [{elapsed}<{remaining}]"
            above = tqdm(
                total=whole.total,
                desc=whole.what,
                bar_format=form,
                leave=False,
                smoothing=0,  # some loops are faster than others
                initial=whole.done,
            )
            # The loops before count, too, for the estimate. tqdm has a clock of its own.
            above.initial, above.start_t = 0, above.start_t - (time.monotonic() - whole.began)
            stack.enter_context(above)
        bar = stack.enter_context(tqdm(items, printable(what), unit=unit, leave=False))
        for item in bar:
            bar.set_postfix_str(beside())
            yield item
            whole.done += work
            if above is not None:
                above.update(work)


def _lines(
    items: Sequence[T], what: str, unit: str, beside: Callable[[], str], whole: Whole, work: float
) -> Generator[T, None, None]:
    start = last_line = time.monotonic()
    last_tenth = 0
    for number, item in enumerate(items):
        now, tenth = time.monotonic(), 10 * number // len(items)
        if number and now - last_line >= (PAUSE if tenth > last_tenth else LONG):
            left = duration((now - start) * (len(items) / number - 1))
            more = f", {beside()}" if beside() else ""
            rate = f"{number:,} of {len(items):,} {unit}s{more}, about {left} left"
            if whole.total:
                rate += f"; {whole.what}: {whole.done / whole.total:.0%}, "
                rate += f"about {duration(whole.left())} left"
            say(f"{what}: {rate}")
            last_line, last_tenth = now, tenth
        yield item
        whole.done += work


def duration(seconds: float) -> str:
    return f"{seconds / 60:.0f} minutes" if seconds >= 90 else f"{seconds:.0f} seconds"
