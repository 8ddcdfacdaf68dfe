"""Exercise 8, one way to write it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor


def label_ids(encode: Callable[[str], list[int]], prompt: str, labels: Sequence[str]) -> list[int]:
    ids, found = encode(prompt), []
    for label in labels:
        longer = encode(prompt + label)
        if longer[:-1] != ids:
            raise ValueError(f"{label!r} is not one token after {prompt[-20:]!r}")
        found.append(longer[-1])
    return found


def label_probabilities(logits_V: Tensor, ids: Sequence[int]) -> Tensor:
    return torch.softmax(logits_V[list(ids)].double(), dim=0)
