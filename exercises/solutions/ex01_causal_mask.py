"""Exercise 1, one way to write it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def causal_mask(length: int) -> Tensor:
    return torch.ones(length, length, dtype=torch.bool).tril()


def packed_mask(prefix: int, branches: Sequence[int]) -> Tensor:
    mask = causal_mask(prefix + sum(branches))
    start = prefix
    for length in branches:
        end = start + length
        mask[end:, start:end] = False  # no later branch sees this one
        start = end
    return mask
