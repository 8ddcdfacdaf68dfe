"""Exercise 7: a cache of keys and values.

A token never reads a later one. So what was computed for the beginning of a prompt holds for any
continuation: its keys and values are kept, and only new tokens run. The new tokens continue the
positions of the old ones, and read the old keys beside their own. A cache of the question that all
branches share gives every branch its logits, one branch after the other, with no mask between
branches at all.

A layer's attention is an argument here: `decoder.run(tokens, positions, attend)`, with (B, T) int64
each, gives hidden states (B, T, D). In each layer it calls `attend(layer, q, k, v)` for layer 0, 1,
... with the queries (B, T, H, h), keys and values (B, T, K, h) of the tokens that run, queries and
keys already rotated. What `attend` returns has the shape of q.

The attention itself is torch's: `scaled_dot_product_attention(q, k, v, mask, enable_gqa=True)`. It
wants heads before tokens, so queries (B, H, T, h), keys and values (B, K, U, h), and gives
(B, H, T, h). The mask is (T, U) bool, True = may attend.

Dimension legend: B batch, here 1; S cached tokens, T new tokens, U = S + T, H query heads, K
key/value heads, h dimensions of a head, D hidden size, G prompts, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

import minise

Cache = list[tuple[Tensor, Tensor]]  # keys (1, S, K, h) and values (1, S, K, h) of each layer


def extend(decoder: minise.Decoder, tokens: Tensor, cache: Cache) -> tuple[Tensor, Cache]:
    """Run T new tokens of one prompt after those in the cache: their hidden states (1, T, D), and
    the cache of all S + T tokens. `tokens`: (1, T) int64. `cache`: of the S tokens before them, at
    the positions 0 to S - 1; an empty list if there are none. It is not changed: others may still
    need it."""
    raise NotImplementedError


def cached_logits(
    decoder: minise.Decoder, prefix: Sequence[int], branches: Sequence[Sequence[int]]
) -> Tensor:
    """The logits after each prompt prefix + branch, (G, V). The prefix runs once, and each branch
    after it, by `extend`. `decoder.logits(hidden)` turns hidden states (..., D) into logits."""
    raise NotImplementedError
