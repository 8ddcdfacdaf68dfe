"""How far the logits of a document are from those of another run of it, token by token, beside what
rounding does to the same tokens.

The largest token says little: with experts, rounding alone sends a token to another expert now and
then, and it is off by all of its size. The median of a few tokens is hardly moved by one of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

BLOCK = 8  # tokens of the first block; each later one is as long as all before it
CHUNK = 64  # tokens whose logits are compared at a time


@dataclass(frozen=True)
class Apart:
    """How far two runs of a document are apart, in the rounding that was measured. typical: of the
    block of tokens in which the median is largest. furthest: of the furthest token, beside the
    furthest of rounding. size: of the furthest token, as part of its logits' size."""

    typical: float
    furthest: float
    size: float

    def within(self, most: float) -> bool:
        """Whether neither is more than this. NaN is."""
        return self.typical <= most and self.furthest <= most


@dataclass(frozen=True, eq=False)
class Rounding:
    """What rounding does to each token of a document. distances: (K, T) float64, of K runs in which
    every layer is off by its rounding. least: that of the logits' dtype."""

    distances: Tensor
    least: float

    def beside(self, distances: Tensor) -> Apart:
        """distances: (T,) of another run, or of its last tokens."""
        noise = self.distances[:, -len(distances) :]
        typical = []
        for block in blocks(len(distances)):
            allowed = noise[:, block].median(dim=1).values.amax().clamp(min=self.least)
            typical.append(distances[block].median() / allowed)
        furthest = distances.amax() / noise.amax().clamp(min=self.least)
        return Apart(float(torch.stack(typical).amax()), float(furthest), float(distances.amax()))


def blocks(count: int) -> list[slice]:
    """The first 8 tokens, the next 8, 16, 32 and so on: a wrong border is felt by the first ones
    most, a lost window by the last. A rest of less than 8 belongs to the last block."""
    starts = [0]
    size = BLOCK
    while size + BLOCK <= count:
        starts.append(size)
        size *= 2
    ends = [*starts[1:], count]
    return [slice(start, end) for start, end in zip(starts, ends, strict=True)]


def distances(right: Tensor, other: Tensor) -> Tensor:
    """(T,) float64: how far the logits of each token, (T, V), are from the right ones, as part of
    their size. A few tokens at a time: float64 takes much memory."""
    parts = []
    for start in range(0, len(right), CHUNK):
        expected = right[start : start + CHUNK].double()
        apart = (expected - other[start : start + CHUNK].double()).norm(dim=-1)
        size = expected.norm(dim=-1).clamp(min=torch.finfo(torch.float64).tiny)
        parts.append(apart / size)
    return torch.cat(parts)


def nudge_up(layer: nn.Module, inputs: Any, output: Any) -> Any:
    return nudged(layer, output, 1)


def nudge_down(layer: nn.Module, inputs: Any, output: Any) -> Any:
    return nudged(layer, output, -1)


NUDGES = (nudge_up, nudge_down)


def nudged(layer: nn.Module, output: Any, first: int) -> Any:
    """A layer's output, off by its rounding, up and down in turn: all later rounding changes."""
    is_leaf = not list(layer.children())
    is_computed = isinstance(output, Tensor) and output.is_floating_point()
    if not is_leaf or not is_computed:
        return None
    is_odd = torch.arange(output.shape[-1], device=output.device) % 2
    signs = first - 2 * first * is_odd
    error = (signs * units_of(output.dtype) * torch.finfo(output.dtype).eps).to(output.dtype)
    return output + output * error


def units_of(dtype: torch.dtype) -> float:
    """How many units a layer's output may be off. Half types are rounded once, by half a unit:
    their products are summed in float32. Those of float32 are rounded with each sum."""
    return 0.5 if dtype.itemsize == 2 else 1.0
