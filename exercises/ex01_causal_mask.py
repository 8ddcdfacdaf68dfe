"""Exercise 1: which token may read which.

A mask is a tensor of bools: True in row i, column j says that token i may attend to token j. In a
prompt a token may attend to itself and to the tokens before it.

A packed sequence holds many prompts that begin alike: first the tokens that all share (the prefix:
a question), then the rest of each prompt, one after the other (the branches: groups of choices). A
token must see exactly what it would see if its prompt were run alone.

Dimension legend: T tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def causal_mask(length: int) -> Tensor:
    """The mask of one prompt of `length` tokens: (T, T) bool.

    >>> causal_mask(3).int().tolist()
    [[1, 0, 0], [1, 1, 0], [1, 1, 1]]
    """
    raise NotImplementedError


def packed_mask(prefix: int, branches: Sequence[int]) -> Tensor:
    """The mask of a packed sequence: (T, T) bool. `prefix`: the number of tokens of the prefix.
    `branches`: the number of tokens of each branch.

    >>> packed_mask(1, [1, 2]).int().tolist()
    [[1, 0, 0, 0], [1, 1, 0, 0], [1, 0, 1, 0], [1, 0, 1, 1]]
    """
    raise NotImplementedError
