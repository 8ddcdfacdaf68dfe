"""The hidden states of whole runs, and the differences between the rows of two runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import torch
from torch import Tensor

from minise.model import Decoder

T = TypeVar("T")
Trace = list[Tensor]  # the rows' hidden states (R, D) after each layer, then after the final norm


def trace(decoder: Decoder, run: Callable[[], T]) -> tuple[Trace, T]:
    """The hidden states of the one pass of `decoder` in `run`, and what `run` returned."""
    rows: Trace = []
    hooks = [
        module.register_forward_hook(lambda _, inputs, output: rows.append(output.flatten(0, -2)))
        for module in (*decoder.model.layers, decoder.model.norm)
    ]
    try:
        return rows, run()
    finally:
        for hook in hooks:
            hook.remove()


def pick(traced: Trace, rows: Sequence[int], top: Sequence[int] | None = None) -> Trace:
    """Some rows of every layer. `top`: the rows of the top layer and the final norm, if others.
    Rows that a run does not have are left out: then a comparison sees other shapes."""
    by_layer = [rows] * (len(traced) - 2) + [rows if top is None else top] * 2
    picked = []
    for layer, numbers in zip(traced, by_layer, strict=True):
        present = [row for row in numbers if row < len(layer)]
        picked.append(layer[torch.tensor(present, device=layer.device)])
    return picked


def flat_paths(prefix: Sequence[int], branches: Sequence[Sequence[int]]) -> list[list[int]]:
    """Each prompt's rows in the packed sequence, computed from the lengths and not from a layout,
    which could be wrong."""
    paths, start = [], len(prefix)
    for branch in branches:
        paths.append([*range(len(prefix)), *range(start, start + len(branch))])
        start += len(branch)
    return paths


def row_sizes(rows: Tensor) -> Tensor:
    """(R,) float64: the root mean square of each row of (R, D)."""
    return rows.double().square().mean(dim=-1).sqrt()


def relative(a: Tensor, b: Tensor) -> float:
    """The largest difference of a row, as part of that row's size in `a`. Infinite if the shapes
    differ. A row of zeros differs by 0 from itself and by a huge number from any other."""
    if a.shape != b.shape:
        return math.inf
    size = row_sizes(a).clamp(min=torch.finfo(torch.float64).tiny)
    return float((row_sizes(a.double() - b.double()) / size).max())


def absolute(a: Tensor, b: Tensor) -> float:
    """The largest difference of an entry; infinite if the shapes differ."""
    return math.inf if a.shape != b.shape else float((a.double() - b.double()).abs().max())


def largest(values: Sequence[float]) -> float:
    """The maximum; NaN if one value is. (max() of values with a NaN depends on their order.)"""
    return math.nan if any(map(math.isnan, values)) else max(values)


@dataclass
class Apart:
    """The largest differences so far between the rows of two runs, layer by layer: of an entry
    (`absolute`), and of a row as part of its size (`relative`). equal: whether all bits are."""

    absolute: list[float] = field(default_factory=list)
    relative: list[float] = field(default_factory=list)
    equal: bool = True

    def add(self, a: Trace, b: Trace) -> None:
        """Compare the rows of `b` with those of `a`."""
        pairs = list(zip(a, b, strict=True))
        self.equal &= all(torch.equal(x, y) for x, y in pairs)
        for maxima, measure in ((self.absolute, absolute), (self.relative, relative)):
            differences = [measure(x, y) for x, y in pairs]
            both = zip(maxima or differences, differences, strict=True)
            maxima[:] = [largest(pair) for pair in both]
