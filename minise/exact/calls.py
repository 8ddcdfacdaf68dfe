"""A function of rows, in calls of a few fixed numbers of rows.

What a kernel does to a row depends on how many rows it is given: that number chooses the order in
which it sums. In calls of one and the same shape a row's bits depend neither on its place nor on
the other rows (docs/bits.md: on which machines that was seen). So all rows go through calls whose
numbers of rows are known to do the same; what is missing in the last call is filled up with zeros.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import torch.nn.functional as F
from torch import Tensor

ADDRESS = 64  # bytes: of these, the address of fresh memory is a multiple
START = 64  # what it costs to start a call, in rows: between 20 and 90 on the machines measured


def in_calls(
    function: Callable[[Tensor], Tensor], x: Tensor, numbers: tuple[int, ...], start: int = START
) -> Tensor:
    """`function(x)` for x (R, ...), row by row, in calls of these numbers of rows."""
    R, x = len(x), x.contiguous()
    if R in numbers or R == 0:
        return function(_fresh(x))
    out, begin = None, 0
    for number in split(R, numbers, start):
        piece = x[begin : begin + number]
        fill = number - len(piece)
        filled = F.pad(piece, (0, 0) * (x.dim() - 1) + (0, fill)) if fill else _fresh(piece)
        result = function(filled)
        if number >= R:
            return result[:R]
        if out is None:
            out = result.new_empty(R, *result.shape[1:])
        out[begin : begin + number] = result[: len(piece)]
        begin += number
    assert out is not None  # with R > 0 there was a call
    return out


def _fresh(x: Tensor) -> Tensor:
    """x, or a copy where it begins inside of other memory: MKL sums in another order where an
    address is no multiple of 16 bytes."""
    return x.clone() if x.data_ptr() % ADDRESS else x


@lru_cache(4096)
def split(R: int, numbers: tuple[int, ...], start: int = START) -> tuple[int, ...]:
    """The calls for R rows, the largest first. Only the last may have rows to spare.

    >>> split(600, (16, 64, 512)), split(5, (16, 64, 512)), split(500, (16, 64, 512))
    ((512, 64, 64), (16,), (512,))
    """
    calls: list[int] = []
    while R > 0:
        enough = min((n for n in numbers if n >= R), default=None)
        below = max((n for n in numbers if n <= R), default=None)
        # A few rows too many cost less than the start of another call.
        if below is None or (enough is not None and enough - R <= start):
            calls.append(enough or max(numbers))
        else:
            calls.append(below)
        R -= calls[-1]
    return tuple(calls)


def cost(R: int, numbers: tuple[int, ...]) -> int:
    """What `split` costs, in rows."""
    return sum(number + START for number in split(R, numbers))
