"""Engines: ways to run the prompts `prefix + branch` of a question. Each is a few lines.

    tree       the packed sequence with common beginnings merged: fewer tokens, the same result
    packed     the paper's packed sequence [Q, G1, G2, ...], with its mask and positions (Section 4)
    separate   every prompt alone, under a causal mask (Section 3.2): the definition

and the paper's two ablations, each the packed sequence with one part left out:

    without-mask, without-positions

An engine gives hidden states (G, D): those at the ends of the G prompts, after the final norm. The
readout (Section 4.3, Eq. 6) starts from these. The first three give the same numbers, within
rounding. In definition.py: `ask` packs and runs. An engine of your own is a function like these
(docs/extending.md). Next to read: lm.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from minise.errors import check_name
from minise.layout import causal_mask, pack

Ids = Sequence[int]


class AnyDecoder(Protocol):
    """All that minise knows of a decoder: an engine calls it, and `lm.LocalModel` reads its logits.
    model.Decoder is one."""

    def __call__(
        self, tokens: Tensor, positions: Tensor, mask: Tensor, rows: Tensor | None = None
    ) -> Tensor:
        """Hidden states (T, D), or (R, D) of `rows`, of one sequence: `model.Decoder.forward`."""
        ...

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits (R, V) of hidden states (R, D)."""
        ...

    @property
    def device(self) -> torch.device: ...
    @property
    def dtype(self) -> torch.dtype: ...


Engine = Callable[[AnyDecoder, Ids, Sequence[Ids]], Tensor]


def tree(decoder: AnyDecoder, prefix: Ids, branches: Sequence[Ids]) -> Tensor:
    layout = pack(prefix, branches, tree=True)
    return decoder(layout.tokens, layout.positions, layout.mask, layout.ends)


def packed(decoder: AnyDecoder, prefix: Ids, branches: Sequence[Ids]) -> Tensor:
    layout = pack(prefix, branches)
    return decoder(layout.tokens, layout.positions, layout.mask, layout.ends)


def separate(decoder: AnyDecoder, prefix: Ids, branches: Sequence[Ids]) -> Tensor:
    hidden = []
    for branch in branches:
        prompt = [*prefix, *branch]
        T = len(prompt)
        last = torch.tensor([T - 1])
        hidden.append(decoder(torch.tensor(prompt), torch.arange(T), causal_mask(T), last))
    return torch.cat(hidden)


def without_mask(decoder: AnyDecoder, prefix: Ids, branches: Sequence[Ids]) -> Tensor:
    """Without the mask (Eq. 3): every token attends to all tokens before it."""
    layout = pack(prefix, branches)
    T = len(layout.tokens)
    return decoder(layout.tokens, layout.positions, causal_mask(T), layout.ends)


def without_positions(decoder: AnyDecoder, prefix: Ids, branches: Sequence[Ids]) -> Tensor:
    """Without positional re-encoding (Eq. 4 and 5): the position ids of the packed sequence are 0,
    1, 2, ..., even beyond the model's last position."""
    layout = pack(prefix, branches)
    T = len(layout.tokens)
    return decoder(layout.tokens, torch.arange(T), layout.mask, layout.ends)


@dataclass(frozen=True)
class NamedEngine:
    """An engine, and the name that reports have for it: a key of ENGINES, or FILE.py:NAME."""

    name: str
    run: Engine


ENGINES: dict[str, Engine] = {
    "tree": tree,
    "packed": packed,
    "separate": separate,
    "without-mask": without_mask,
    "without-positions": without_positions,
}


def engine_named(name: str) -> NamedEngine:
    """The engine of this name. Raises InputError for an unknown one."""
    check_name("engine", name, [*ENGINES, "FILE.py:NAME"])
    return NamedEngine(name, ENGINES[name])


def token_counts(prefix: Ids, branches: Sequence[Ids]) -> dict[str, int]:
    """How many tokens these prompts have when they run separate, packed, or as a tree."""
    packed = len(prefix) + sum(len(branch) for branch in branches)
    separate = packed + len(prefix) * (len(branches) - 1)
    merged = pack(prefix, branches, tree=True)
    return {"separate": separate, "packed": packed, "tree": len(merged.tokens)}
