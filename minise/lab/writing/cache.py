"""Run tokens that follow others: a cache keeps the keys and values of those that were run.

It holds the position of each of its tokens, and never assumes that they are 0, 1, 2, ...

B sequences, P tokens of a cache, T that follow, U = P + T, K key/value heads, h head_dim.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from minise.model import Decoder, expanded, flat


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


def extend(
    decoder: Decoder,
    tokens: Tensor,
    positions: Tensor,
    mask: Tensor,
    cache: Cache | None = None,
    rows: Tensor | None = None,
) -> tuple[Tensor, Cache]:
    """`Decoder.forward` for tokens (..., T) that follow those of a cache: their hidden states, and
    the cache of all. The columns of the mask (..., T, P + T) are the P cached tokens, then the new
    ones; `rows` are of the new ones. The cache has as many sequences. Raises as `forward` does.
    """
    P = 0 if cache is None else cache.positions.shape[-1]
    T = tokens.shape[-1]
    if mask.shape[-1] != P + T:
        what = f"the mask has {mask.shape[-1]} columns; expected {P} of the cache and {T}"
        raise ValueError(what)
    tokens, positions, _ = expanded(tokens, positions, mask[..., P:])
    batch = tokens.shape[:-1]
    mask = mask.expand(*batch, T, P + T)
    tokens_BT, positions_BT = flat(tokens, 1), flat(positions, 1)
    growing = Growing(cache, positions_BT)
    read = decoder.reader(flat(mask, 2), growing.cache.positions, rows)

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        all_keys, all_values = growing.add(layer, k, v)
        return read(layer, q, all_keys, all_values)

    hidden_BRD = decoder.run(tokens_BT, positions_BT, attend, rows)
    return hidden_BRD.reshape(*batch, *hidden_BRD.shape[1:]), growing.cache
