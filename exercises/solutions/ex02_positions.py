"""Exercise 2: where each token stands.

The rotary embedding (exercise 3) tells a model how far two tokens are apart: by the difference of
their position ids. In a packed sequence a branch must have the positions that it would have right
after the prefix. If its positions run on behind the branch before it, no group can read another,
and yet the answers change.

Dimension legend: T tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def packed_positions(prefix: int, branches: Sequence[int]) -> Tensor:
    """The position ids of a packed sequence: (T,) int64. `prefix`: the number of tokens of the
    prefix. `branches`: the number of tokens of each branch.

    >>> packed_positions(2, [2, 3]).tolist()
    [0, 1, 2, 3, 2, 3, 4]
    """
    parts = [torch.arange(prefix)]
    parts += [torch.arange(prefix, prefix + length) for length in branches]
    return torch.cat(parts)


def positions_from_mask(mask_TT: Tensor) -> Tensor:
    """The position ids of the tokens of a mask: (T,) int64. `mask_TT`: (T, T) bool, True = the
    row's token may attend to the column's. Each token sees all tokens of its prompt up to itself,
    and no others.

    >>> positions_from_mask(torch.tensor([[True, False], [True, True]])).tolist()
    [0, 1]
    """
    return mask_TT.sum(dim=1) - 1
