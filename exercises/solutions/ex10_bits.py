"""Exercise 10, one way to write it."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def same_bits(a: Tensor, b: Tensor) -> bool:
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    as_int = {8: torch.int64, 4: torch.int32, 2: torch.int16}[a.element_size()]
    return torch.equal(a.contiguous().view(as_int), b.contiguous().view(as_int))


def in_calls_of(rows: int, function: Callable[[Tensor], Tensor], x_RI: Tensor) -> Tensor:
    pieces = []
    for piece_RI in x_RI.split(rows):
        filled_RI = piece_RI.new_zeros(rows, x_RI.shape[1])
        filled_RI[: len(piece_RI)] = piece_RI
        pieces.append(function(filled_RI)[: len(piece_RI)])
    return torch.cat(pieces)
