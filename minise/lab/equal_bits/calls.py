"""A function of rows, called with a few fixed numbers of rows.

A kernel chooses its order of summation by the number of rows. In calls of one shape a row's bits
depend neither on its place nor on the others (docs/verify.md). So all rows go through calls with
numbers of rows that were measured to give the same bits; the last is filled up with zeros.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

ADDRESS = 64  # bytes: the address of newly allocated memory is a multiple of this
START = 64  # the cost of starting a call, in rows: between 20 and 90 on the machines measured


def in_calls(
    function: Callable[[Tensor], Tensor], x: Tensor, numbers: tuple[int, ...], start: int = START
) -> Tensor:
    """`function(x)` for x (R, ...), in calls with these `numbers` of rows. `start`: see
    `sizes_of_calls`."""
    R = len(x)
    x = x.contiguous()
    if R in numbers or R == 0:
        return function(fresh(x))
    results = []
    begin = 0
    for number in sizes_of_calls(R, numbers, start):
        piece = x[begin : begin + number]
        begin += number
        fill = number - len(piece)
        if fill:
            first_dimension = (0, 0) * (x.dim() - 1) + (0, fill)  # F.pad begins at the last one
            results.append(function(F.pad(piece, first_dimension)))
        else:
            results.append(function(fresh(piece)))
    if len(results) == 1:
        return results[0][:R]
    return torch.cat(results)[:R]


def fresh(x: Tensor) -> Tensor:
    """x, or a copy if x begins in the middle of other memory: MKL sums in another order if an
    address is not a multiple of 16 bytes."""
    return x.clone() if x.data_ptr() % ADDRESS else x


@lru_cache(4096)
def sizes_of_calls(R: int, numbers: tuple[int, ...], start: int = START) -> tuple[int, ...]:
    """The numbers of rows of the calls for R rows, the largest first. Only the last call may have
    more rows than are left. `start` is the cost of starting a call, in rows.

    >>> sizes_of_calls(600, (16, 64, 512))
    (512, 64, 64)
    >>> sizes_of_calls(5, (16, 64, 512))
    (16,)
    >>> sizes_of_calls(500, (16, 64, 512))
    (512,)
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


def cost(R: int, numbers: Sequence[int]) -> int:
    """The cost of the calls that `sizes_of_calls` gives, in rows."""
    sizes = sizes_of_calls(R, tuple(numbers))
    return sum(sizes) + START * len(sizes)
