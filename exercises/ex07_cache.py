"""Exercise 7: a cache of keys and values.

A token never reads a later one. So what was computed for the beginning of a prompt holds for any
continuation: its keys and values are kept, and only new tokens run. The new tokens continue the
positions of the old ones, and read the old keys beside their own. A cache of the question that all
branches share gives every branch its logits, one branch after the other, with no mask between
branches at all.

A layer's attention is an argument here: `decoder.run(tokens, positions, attend)` gives hidden
states (T, D). In each layer it calls `attend(layer, q, k, v)` for layer 0, 1, ... with the queries
(T, H, h), keys and values (T, K, h) of the tokens that run, queries and keys already rotated. What
`attend` returns has the shape of q. `masked_attention(q, k, v, mask)` takes T queries, U keys and
values and a mask (T, U).

Dimension legend: S cached tokens, T new tokens, U = S + T, H query heads, K key/value heads, h
dimensions of a head, D hidden size, G prompts, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

import minise
from minise.attention import masked_attention

Cache = list[tuple[Tensor, Tensor]]  # keys (S, K, h) and values (S, K, h) of each layer


def extend(decoder: minise.Decoder, tokens: Tensor, cache: Cache) -> tuple[Tensor, Cache]:
    """Run T new tokens of one prompt after those in the cache: their hidden states (T, D), and the
    cache of all S + T tokens. `tokens`: (T,) int64. `cache`: of the S tokens before them, at the
    positions 0 to S - 1; an empty list if there are none. It is not changed: others may still need
    it."""
    raise NotImplementedError


def cached_logits(
    decoder: minise.Decoder, prefix: Sequence[int], branches: Sequence[Sequence[int]]
) -> Tensor:
    """The logits after each prompt prefix + branch, (G, V). The prefix runs once, and each branch
    after it, by `extend`. `decoder.logits(hidden)` turns hidden states (..., D) into logits."""
    raise NotImplementedError
