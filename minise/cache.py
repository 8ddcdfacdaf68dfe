"""The keys and values of tokens that were run, so that later tokens can read them.

A cache holds the position of each of its tokens. It never assumes that they are 0, 1, 2, ...
Next to read: model.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Cache:
    """P tokens of B sequences. positions: (B, P) int64. keys (rotated) and values: one tensor
    (B, P, K, h) for each layer. Do not change one: a longer cache is a new object."""

    positions: Tensor
    keys: Sequence[Tensor]
    values: Sequence[Tensor]

    def only(self, rows: Tensor) -> Cache:
        """A cache with only these rows (R,) int64, in this order."""
        return Cache(
            self.positions[:, rows],
            [keys[:, rows] for keys in self.keys],
            [values[:, rows] for values in self.values],
        )


class Growing:
    """Collects the keys and values of new tokens, layer by layer, while they are run.

    before: the cache of earlier tokens, if any. positions: (B, T) int64, of the new tokens.
    cache: the cache of all of them, complete when every layer was run.
    """

    def __init__(self, before: Cache | None, positions: Tensor) -> None:
        self.before = before
        if before is not None:
            positions = torch.cat([before.positions, positions], dim=1)
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []
        self.cache = Cache(positions, self.keys, self.values)

    def add(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """All keys and all values of a layer, (B, P + T, K, h), from the new ones."""
        if self.before is not None:
            keys = torch.cat([self.before.keys[layer], keys], dim=1)
            values = torch.cat([self.before.values[layer], values], dim=1)
        self.keys.append(keys)
        self.values.append(values)
        return keys, values
