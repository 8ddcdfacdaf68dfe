"""Which numbers of rows share their bits on this machine, and what a call of each costs."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F

from minise.evaluation.meter import timed
from minise.exact.probe import Classes, Shape, choose, measure, samples, tried

CALLS = 5  # of each number of rows; their median is told
LONG = 0.2  # seconds of a call from which three are enough


@dataclass(frozen=True)
class Bits:
    """What was measured of a linear layer. classes: numbers of rows that share their bits; one that
    was tried and is in none does not do the same to every row of a call. chosen: the class in which
    minise calls the layer. microseconds: of a call, by its number of rows; the median of several.
    """

    shape: Shape
    classes: Classes
    chosen: tuple[int, ...]
    microseconds: dict[int, float]

    def as_json(self) -> dict[str, Any]:
        """The JSON object of the shape."""
        return {
            "in": self.shape.inputs,
            "out": self.shape.outputs,
            "bias": self.shape.bias,
            "tried": list(self.microseconds),
            "classes": self.classes,
            "chosen": list(self.chosen),
            "microseconds": {str(rows): round(us, 1) for rows, us in self.microseconds.items()},
        }

    def as_text(self) -> str:
        """A block of lines: the classes, and under each number of rows what a call takes, and how
        much more a row costs in it than in the largest call."""
        us, most = self.microseconds, max(self.microseconds)
        rows = {
            "rows": [f"{n:,}{'*' * (n in self.chosen)}" for n in us],
            "microseconds": [f"{one:,.0f}" for one in us.values()],
            "of a row": [f"{(one / n) / (us[most] / most):.2f}" for n, one in us.items()],
        }
        wide = max(len(cell) for cells in rows.values() for cell in cells) + 2
        return "\n".join(
            [
                f"{self.shape.inputs:,} x {self.shape.outputs:,}{' + bias' * self.shape.bias}: "
                f"{in_words(self.classes, list(us))}",
                *(
                    f"  {name:12}" + "".join(f"{x:>{wide}}" for x in row)
                    for name, row in rows.items()
                ),
            ]
        )


def measure_bits(shape: Shape) -> Bits:
    """Find the classes anew, without the cache of this machine, and time a call of each number of
    rows."""
    classes = measure(shape)
    weight, bias, rows = samples(shape)
    microseconds = {}
    with torch.inference_mode():
        for number in tried(shape):
            call = partial(F.linear, rows[torch.arange(number) % len(rows)], weight, bias)
            calls = CALLS if timed(call, weight.device) < LONG else 3  # it warms up, too
            seconds = [timed(call, weight.device) for _ in range(calls)]
            microseconds[number] = 1e6 * statistics.median(seconds)
    return Bits(shape, classes, choose(classes), microseconds)


def in_words(classes: Classes, tried: Sequence[int]) -> str:
    """Classes as a person writes them. Braces: numbers that are no neighbours share their bits.

    >>> in_words([[1], [2, 4], [8, 32], [16]], [1, 2, 4, 8, 16, 32])
    '1; 2 to 4; {8, 32 and more}; 16'
    """
    return "; ".join(_class(one, tried) for one in classes)


def _class(members: list[int], tried: Sequence[int]) -> str:
    runs: list[list[int]] = []
    for number in members:
        if runs and tried.index(number) == tried.index(runs[-1][-1]) + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    words = []
    for run in runs:
        first, last = run[0], run[-1]
        if last == tried[-1]:
            words.append("all" if first == tried[0] else f"{first:,} and more")
        else:
            words.append(f"{first:,}" if first == last else f"{first:,} to {last:,}")
    return words[0] if len(words) == 1 else f"{{{', '.join(words)}}}"
