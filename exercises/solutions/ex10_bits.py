"""Exercise 10: equal bits.

Floating-point sums depend on their order: (a + b) + c is not a + (b + c). A library chooses the
order by the shape of the call, so the same row can get other bits in a call with other rows beside
it. Two ways of running a model then agree "up to rounding", and a close decision can flip. Where
every call has the same number of rows, a row's bits do not depend on what runs beside it.

Dimension legend: R rows, I inputs, O outputs.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Whether two floating-point tensors have the same shape, dtype and bits. 0.0 and -0.0 are
    equal numbers with other bits; NaN is not equal to itself, but its bits are.

    >>> same_bits(torch.tensor([0.5]), torch.tensor([0.5]))
    True
    >>> same_bits(torch.tensor([0.0]), torch.tensor([-0.0]))
    False
    """
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    as_int = {8: torch.int64, 4: torch.int32, 2: torch.int16}[a.element_size()]
    return torch.equal(a.contiguous().view(as_int), b.contiguous().view(as_int))


def in_calls_of(rows: int, function: Callable[[Tensor], Tensor], x_RI: Tensor) -> Tensor:
    """`function(x_RI)`, (R, O), by calls with exactly `rows` rows each. `function` computes each
    row from that row alone: (any number of rows, I) to (the same number, O). The last call is
    filled up with rows of zeros, and their results are dropped. R is at least 1.

    >>> in_calls_of(2, lambda x: 10 * x, torch.tensor([[1.0], [2.0], [3.0]])).tolist()
    [[10.0], [20.0], [30.0]]
    """
    pieces = []
    for piece_RI in x_RI.split(rows):
        filled_RI = piece_RI.new_zeros(rows, x_RI.shape[1])
        filled_RI[: len(piece_RI)] = piece_RI
        pieces.append(function(filled_RI)[: len(piece_RI)])
    return torch.cat(pieces)
