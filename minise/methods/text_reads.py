"""The probability of a text, read token by token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Read:
    """Where the text of a choice is read. choice: its index in the question. prompts, tokens: for
    each token of its text, the prompt after which it is read, and its id. end: the prompt after the
    whole text, and the ids of which any ends it; None: the end is not read."""

    choice: int
    prompts: tuple[int, ...]
    tokens: tuple[int, ...]
    end: tuple[int, tuple[int, ...]] | None = None


def text_log_p(logits: Sequence[Tensor], reads: Sequence[Read]) -> Tensor:
    """log prod_j p(t_j | t_<j), in nats, of each text (len(reads),); and of its end, where that is
    read. `logits`: (V,) of each prompt, over the whole vocabulary."""
    log_p = torch.stack(list(logits)).log_softmax(dim=-1)
    sums = []
    for read in reads:
        text = log_p[read.prompts, read.tokens].sum()
        if read.end is not None:
            prompt, ids = read.end
            text = text + log_p[prompt, list(ids)].logsumexp(dim=0)
        sums.append(text)
    return torch.stack(sums)
