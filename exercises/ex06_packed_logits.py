"""Exercise 6: many prompts, one pass.

With the right mask (exercise 1) and the right positions (exercise 2) each token of a packed
sequence computes what it would compute in its prompt alone, layer by layer. So one forward pass
gives the logits after every prompt.

The decoder takes everything as arguments: `decoder(tokens, positions, mask)`, with (T,) int64,
(T,) int64 and (T, T) bool, gives hidden states (T, D). `decoder.logits(hidden)` turns hidden
states (..., D) into logits (..., V). Use your own functions of exercises 1 and 2, or
`minise.pack(prefix, branches)`, which has `tokens`, `positions` and `mask`.

Dimension legend: T tokens, D hidden size, G prompts, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

import minise


def separate_logits(decoder: minise.Decoder, prompts: Sequence[Sequence[int]]) -> Tensor:
    """The definition: the logits after the last token of each prompt, (G, V), each prompt run alone
    under a causal mask. `prompts`: lists of token ids."""
    raise NotImplementedError


def packed_logits(
    decoder: minise.Decoder, prefix: Sequence[int], branches: Sequence[Sequence[int]]
) -> Tensor:
    """The same logits, (G, V), of the prompts prefix + branch, in one call of the decoder: the
    prefix once, then the branches, in the order given. Logits are computed where a prompt ends, and
    nowhere else. No branch is empty."""
    raise NotImplementedError
