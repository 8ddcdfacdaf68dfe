"""Exercise 6, one way to write it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

import minise


def separate_logits(decoder: minise.Decoder, prompts: Sequence[Sequence[int]]) -> Tensor:
    rows = []
    for prompt in prompts:
        T = len(prompt)
        mask = torch.ones(T, T, dtype=torch.bool).tril()
        hidden = decoder(torch.tensor(prompt), torch.arange(T), mask)
        rows.append(decoder.logits(hidden[-1]))
    return torch.stack(rows)


def packed_logits(
    decoder: minise.Decoder, prefix: Sequence[int], branches: Sequence[Sequence[int]]
) -> Tensor:
    layout = minise.pack(prefix, branches)
    hidden = decoder(layout.tokens, layout.positions, layout.mask)
    lengths = torch.tensor([len(branch) for branch in branches])
    ends = len(prefix) + lengths.cumsum(0) - 1
    return decoder.logits(hidden[ends])
