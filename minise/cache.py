"""The keys and values of tokens that have run, so that later tokens can read them.

A cache knows the position of each of its tokens. It never assumes that they are 0, 1, 2, ...
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Cache:
    """S tokens. positions: (..., S) int64. keys (rotated) and values: (..., S, K, h), one of each
    for every layer. None of them is ever changed: a longer cache is a new one."""

    positions: Tensor
    keys: Sequence[Tensor]
    values: Sequence[Tensor]

    def only(self, rows: Tensor) -> Cache:
        """The cache of these rows (R,) int64, in this order."""
        return Cache(
            self.positions[..., rows],
            [keys[..., rows, :, :] for keys in self.keys],
            [values[..., rows, :, :] for values in self.values],
        )


class Growing:
    """A cache that takes the keys and values of new tokens, layer by layer, while they run.

    `cache` is complete when every layer has run. `positions` (..., T) are those of the new tokens.
    """

    def __init__(self, before: Cache | None, positions: Tensor) -> None:
        self.before = before
        known = positions if before is None else torch.cat([before.positions, positions], dim=-1)
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []
        self.cache = Cache(known, self.keys, self.values)

    def add(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """All keys and all values of a layer, (..., S + T, K, h), from the new ones."""
        if self.before is not None:
            keys = torch.cat([self.before.keys[layer], keys], dim=-3)
            values = torch.cat([self.before.values[layer], values], dim=-3)
        self.keys.append(keys)
        self.values.append(values)
        return keys, values
