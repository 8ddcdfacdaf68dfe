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

CALLS = 5  # of each number of rows; the result is their median
LONG = 0.2  # seconds; of a longer call three are enough


@dataclass(frozen=True)
class Bits:
    """What was measured for a linear layer.

    classes: numbers of rows that share their bits. A number that was tried and is in no class does
    not treat every row of a call alike. chosen: the class in which minise calls the layer.
    microseconds: of a call, by its number of rows; the median of several.
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
        """A block of lines: the classes; for each number of rows the time of a call; and the time
        of each of its rows, as a multiple of the largest call's."""
        us, most = self.microseconds, max(self.microseconds)
        table = {
            "rows": [f"{n:,}{'*' * (n in self.chosen)}" for n in us],
            "microseconds": [f"{time:,.0f}" for time in us.values()],
            "of a row": [f"{(time / n) / (us[most] / most):.2f}" for n, time in us.items()],
        }
        width = max(len(cell) for cells in table.values() for cell in cells) + 2
        layer = f"{self.shape.inputs:,} x {self.shape.outputs:,}{' + bias' * self.shape.bias}"
        lines = [f"{layer}: {in_words(self.classes, list(us))}"]
        for name, cells in table.items():
            lines.append(f"  {name:12}" + "".join(f"{cell:>{width}}" for cell in cells))
        return "\n".join(lines)


def measure_bits(shape: Shape) -> Bits:
    """Measure the classes again, without this machine's cache, and time a call of each number of
    rows."""
    classes = measure(shape)
    weight, bias, rows = samples(shape)
    microseconds = {}
    with torch.inference_mode():
        for number in tried(shape):
            call = partial(F.linear, rows[torch.arange(number) % len(rows)], weight, bias)
            calls = CALLS if timed(call, weight.device) < LONG else 3  # this one also warms up
            seconds = [timed(call, weight.device) for _ in range(calls)]
            microseconds[number] = 1e6 * statistics.median(seconds)
    return Bits(shape, classes, choose(classes), microseconds)


def in_words(classes: Classes, tried: Sequence[int]) -> str:
    """Classes as a person writes them. Braces: numbers that share their bits without being
    neighbours.

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
