"""The hidden states of whole runs, and how far the rows of two runs are apart."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import torch
from torch import Tensor

from minise.checking.recording import record
from minise.model import Decoder

T = TypeVar("T")
Trace = list[Tensor]  # the rows' hidden states (R, D) after each layer, then after the final norm


def trace(decoder: Decoder, run: Callable[[], T]) -> tuple[Trace, T]:
    """The hidden states of the one pass in `run`, and what `run` returned."""
    normed: list[Tensor] = []
    hook = decoder.model.norm.register_forward_hook(lambda _, given, out: normed.append(out))
    try:
        with record(decoder) as seen:
            result = run()
    finally:
        hook.remove()
    streams = [seen.residual[layer] for layer in range(decoder.config.num_hidden_layers)]
    return [rows.flatten(0, -2) for rows in (*streams, normed[-1])], result


def pick(traced: Trace, rows: Sequence[int], top: Sequence[int] | None = None) -> Trace:
    """Some rows of every layer. `top`: those of the top layer and the final norm, if they differ.
    Rows that a run does not have are left out: then the shapes tell."""
    *below, last, final = traced
    asked = [rows] * len(below) + [rows if top is None else top] * 2
    return [
        layer[torch.tensor([row for row in wanted if row < len(layer)], device=layer.device)]
        for layer, wanted in zip([*below, last, final], asked, strict=True)
    ]


def row_sizes(rows: Tensor) -> Tensor:
    """(R,) float64: the root mean square of each row of (R, D)."""
    return rows.double().square().mean(dim=-1).sqrt()


def relative(a: Tensor, b: Tensor) -> float:
    """The largest difference of a row, as part of that row's size in `a`. Infinite where the shapes
    differ. A row of zeros differs by 0 from itself and by far too much from any other."""
    if a.shape != b.shape:
        return math.inf
    size = row_sizes(a).clamp(min=torch.finfo(torch.float64).tiny)
    return float((row_sizes(a.double() - b.double()) / size).max())


def absolute(a: Tensor, b: Tensor) -> float:
    """The largest difference of an entry; infinite where the shapes differ."""
    return math.inf if a.shape != b.shape else float((a.double() - b.double()).abs().max())


def largest(values: Sequence[float]) -> float:
    """The maximum, NaN if one is. max() of a sequence with a NaN depends on its order."""
    return math.nan if any(map(math.isnan, values)) else max(values)


@dataclass
class Apart:
    """The largest differences found so far between the rows of two runs, layer by layer: of an
    entry (`absolute`), and of a row as part of its size (`relative`). equal: no bit differs."""

    absolute: list[float] = field(default_factory=list)
    relative: list[float] = field(default_factory=list)
    equal: bool = True

    def add(self, a: Trace, b: Trace) -> None:
        """Compare the rows of `b` with those of `a`."""
        pairs = list(zip(a, b, strict=True))
        self.equal &= all(torch.equal(x, y) for x, y in pairs)
        for kept, measure in ((self.absolute, absolute), (self.relative, relative)):
            found = [measure(x, y) for x, y in pairs]
            kept[:] = [largest(both) for both in zip(kept or found, found, strict=True)]
