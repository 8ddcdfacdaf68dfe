"""Run tokens that follow others: a cache keeps the keys and values of those that were run.

It holds the position of each of its tokens, and never assumes that they are 0, 1, 2, ... Where
layers have states it holds those of the tokens whose hidden states were asked for, too.

B sequences, P tokens of a cache, T that follow, U = P + T, K key/value heads, h head_dim.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from minise.errors import InputError
from minise.lab.recurrent.kept import GoingOn, Kept
from minise.lab.recurrent.qwen35 import Qwen35
from minise.model import Decoder, expanded, flat


@dataclass(frozen=True, eq=False)
class Cache:
    """P tokens of B sequences. positions: (B, P) int64. keys (rotated) and values: one tensor
    (B, P, K, h) for each layer with attention. kept: of layers with states. Do not change one: a
    longer cache is a new object."""

    positions: Tensor
    keys: Sequence[Tensor]
    values: Sequence[Tensor]
    kept: Kept | None = None

    def only(self, rows: Tensor) -> Cache:
        """A cache with only these rows (R,) int64, in this order."""
        return Cache(
            self.positions[:, rows],
            [keys[:, rows] for keys in self.keys],
            [values[:, rows] for values in self.values],
            None if self.kept is None else self.kept.only(rows),
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

    def add(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """All keys and all values of the next layer, (B, P + T, K, h), from the new ones."""
        if self.before is not None:
            layer = len(self.keys)
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

    A model with states takes one sequence, and the new cache keeps the states of `rows` alone (all
    new tokens, if None). Raises InputError for a token that goes on from another.
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
    if isinstance(decoder, Qwen35) and len(tokens_BT) > 1:
        raise InputError("a model with states goes on in one sequence; pack the prompts into it")
    growing = Growing(cache, positions_BT)
    read = decoder.reader(flat(mask, 2), growing.cache.positions, rows)

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        all_keys, all_values = growing.add(k, v)
        return read(layer, q, all_keys, all_values)

    if not isinstance(decoder, Qwen35):
        hidden_BRD = decoder.run(tokens_BT, positions_BT, attend, rows)
        return hidden_BRD.reshape(*batch, *hidden_BRD.shape[1:]), growing.cache
    chosen = torch.arange(T) if rows is None else rows
    before = None if cache is None else cache.kept
    going_on = GoingOn(before, flat(mask, 2)[0].to(decoder.device), chosen.to(decoder.device))
    hidden_BRD = decoder.run(tokens_BT, positions_BT, attend, rows, [going_on])
    hidden = hidden_BRD.reshape(*batch, *hidden_BRD.shape[1:])
    return hidden, replace(growing.cache, kept=going_on.kept)
