"""The masks and positions that others gave a packed row by mistake, as docs/zoo.md tells them.

A mask that is wrong is compared with each of these, and so are logits with a run under each.
Another mistake is one more entry of `_hidden` or `positions`.

Dimension legend: T tokens of the row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from minise.attention import within
from minise.checking.packing import Packing
from minise.layout import causal_mask

CAUSAL = "the mask is causal over the whole row, there is no block mask"
NOTHING = "nothing is hidden: every token may attend to every other"
BY_INDEX = "the window is counted by index, not by position"
SHORTER = "hide the next token: key <= query, not key <= query + 1"


Narrow = Callable[[Tensor, int | None], Tensor]  # a mask, narrowed to a window in some way
Hidden = tuple[str, str, Callable[[], Tensor]]  # a name, what to do, and what makes the mask


@dataclass(frozen=True)
class Mistake:
    """A wrong mask: its name, what to do, and the mask (T, T) for a sliding window or None."""

    name: str
    mend: str
    mask_of: Callable[[int | None], Tensor]


def meant_mask(p: Packing, window: int | None) -> Tensor:
    """(T, T) bool, what a row should be given: each token attends to its ancestors and itself,
    within the window."""
    return within(p.meant.mask & p.real, p.meant.positions, p.meant.positions, window)


def masks(p: Packing, windows: Sequence[int | None]) -> Iterator[Mistake]:
    """Each known mask with each known way to apply a window, if there is one in `windows`."""
    depth, index = p.meant.positions, torch.arange(len(p.real))
    by = "compare position ids, not places in the row"
    size = "position i may attend to position j where i - j < window"
    ways: list[tuple[str, str, Narrow]] = [
        ("", "", lambda m, w: within(m, depth, depth, w)),
        (BY_INDEX, by, lambda m, w: within(m, index, index, w)),
        ("the sliding window is not applied", "apply it", lambda m, w: m),
        ("the window is one too wide", size, lambda m, w: within(m, depth, depth, w and w + 1)),
        ("the window is one too narrow", size, lambda m, w: within(m, depth, depth, w and w - 1)),
    ]
    right: Hidden = ("", "", lambda: p.meant.mask & p.real)
    for name, mend, mask in (right, *_hidden(p)):
        for way, how, narrow in ways if any(windows) else ways[:1]:
            names, mends = ("; ".join(filter(None, two)) for two in ((name, way), (mend, how)))
            if names:
                yield Mistake(names, mends, partial(_narrowed, mask, narrow))


def _narrowed(mask: Callable[[], Tensor], narrow: Narrow, window: int | None) -> Tensor:
    return narrow(mask(), window)


def _hidden(p: Packing) -> list[Hidden]:
    """Known masks without a window: a name, what to do, and the mask, made when it is needed."""
    T, real = len(p.real), p.real
    full, causal = p.meant.mask & real, causal_mask(T)
    same = p.parts[:, None] == p.parts
    after = torch.ones(T, T, dtype=torch.bool).triu(1).tril(1)
    block = "hide other prompts: by cu_seqlens, a block mask, or a mask_mod that compares them"
    pad = "hide padding from the other tokens"
    padded: Hidden = ("padding may be attended to", pad, lambda: full | (causal & ~real))
    known: list[Hidden] = [
        *([] if real.all() else [padded]),
        (CAUSAL, block, lambda: causal & real),
        (f"{CAUSAL}, and padding may be attended to", f"{block}; {pad}", lambda: causal),
        (
            NOTHING,
            "give a bool mask where bool is meant; to be added, 0 shows and -inf hides",
            lambda: torch.ones_like(full),
        ),
        (NOTHING, "hide later tokens and other prompts", lambda: real.expand(T, T)),
        (
            "later tokens of a prompt may be attended to: the mask is not causal",
            "hide later tokens",
            lambda: full | full.T,
        ),
        (
            "the mask is transposed: its rows are keys",
            "transpose it: a row for each query, a column for each key",
            lambda: full.T,
        ),
        (
            "the mask is inverted: it shows what it must hide",
            "invert it, or change its sign: True, or 0 if it is added, shows",
            lambda: ~full,
        ),
        (
            "a token may not attend to itself: the diagonal is missing",
            "show each token to itself: key <= query, not key < query",
            lambda: full & ~torch.eye(T, dtype=torch.bool),
        ),
        ("the diagonal is off by one, over all borders", SHORTER, lambda: full | after),
        ("the diagonal is off by one", SHORTER, lambda: full | (after & same)),
    ]
    if p.is_tree:
        stems = torch.isin(p.parts, p.parts[p.meant.parents < 0])
        return [
            *known,
            ("a branch may not attend to the trunk", "show it the trunk", lambda: full & same),
            (
                "the tree is read as one trunk and leaves: what is between them is hidden",
                "show each token all of its ancestors",
                lambda: full & (same | stems),
            ),
        ]
    for shift, kept in ((1, 0), (-1, -1)):
        parts = p.parts.roll(shift)
        parts[kept] = p.parts[kept]
        moved = "the borders of the documents are off by one"
        count = "cu_seqlens counts from 0, and an end is the next document's first token"
        known.append((moved, count, partial(_blocks, parts, causal & real)))
    return known


def _blocks(parts: Tensor, causal: Tensor) -> Tensor:
    return causal & (parts[:, None] == parts)


def positions(p: Packing) -> Iterator[tuple[str, Tensor]]:
    """Known wrong positions: a name, and (T,) int64."""
    T, depth = len(p.real), p.meant.positions
    index = torch.arange(T)
    if p.is_tree or not p.real.all():
        yield "positions are by index: they count every token of the row", index
    if not p.is_tree:
        run_on = p.real.cumsum(0) - 1
        yield "positions run on, and do not start over with each document", run_on
    yield "positions start at 1, not at 0", depth + 1
    begins = p.parts.diff(prepend=p.parts[:1] - 1) != 0
    restart = index - torch.where(begins, index, 0).cummax(0).values
    yield "positions start over at 0 with each branch, and do not go on from the trunk", restart
    later = (p.parts != p.parts[0]).long()
    kind = "branches" if p.is_tree else "documents after the first"
    for step in (1, -1):
        yield f"positions of the {kind} are off by one", depth + step * later
