"""Exercise 5, one way to write it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def merge(prompts: Sequence[Sequence[int]]) -> tuple[list[int], list[int], list[int]]:
    tokens: list[int] = []
    parents: list[int] = []
    ends: list[int] = []
    rows: dict[tuple[int, int], int] = {}  # (parent, token id) -> row
    for prompt in prompts:
        row = -1
        for token in prompt:
            if (row, token) not in rows:
                rows[row, token] = len(tokens)
                tokens.append(token)
                parents.append(row)
            row = rows[row, token]
        ends.append(row)
    return tokens, parents, ends


def tree_mask(parents: Sequence[int]) -> Tensor:
    mask = torch.eye(len(parents), dtype=torch.bool)
    for row, parent in enumerate(parents):
        if parent >= 0:
            mask[row] |= mask[parent]
    return mask
