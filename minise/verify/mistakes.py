"""The masks and positions that others gave a packed row by mistake, as docs/zoo.md tells them.

A mask that is wrong is compared with each of these. Another mistake is one more line of `_hidden`
or `positions`. Dimension legend: T tokens of the row.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from minise.attention import within
from minise.layout import causal_mask
from minise.verify.packing import Packing

CAUSAL = "the mask is causal over the whole row, there is no block mask"
NOTHING = "nothing is hidden: every token may attend to every other"
BY_INDEX = "the window is counted by index, not by position"
BLOCK = "hide other prompts: by cu_seqlens, a block mask, or a mask_mod that compares them"
PADDING = "hide padding from the other tokens"
SHORTER = "hide the next token: key <= query, not key <= query + 1"


class Mistake(NamedTuple):
    """A wrong mask (T, T), and what to do."""

    name: str
    mend: str
    mask: Tensor


def meant_mask(p: Packing) -> Tensor:
    """(T, T) bool, what a row should be given: each token attends to its ancestors and itself,
    within the window."""
    depth = p.meant.positions
    return within(p.meant.mask & p.real, depth, depth, p.given.get("window"))


def masks(p: Packing) -> Iterator[Mistake]:
    """Each known mask with each known way to apply the window, if there is one."""
    depth, index, window = p.meant.positions, torch.arange(len(p.real)), p.given.get("window")
    by = "compare position ids, not places in the row"
    size = "position i may attend to position j where i - j < window"
    ways = [("", "", depth, window)]
    if window:
        ways += [
            (BY_INDEX, by, index, window),
            ("the sliding window is not applied", "apply it", depth, None),
            ("the window is one too wide", size, depth, window + 1),
            ("the window is one too narrow", size, depth, window - 1),
        ]
    for name, mend, mask in _hidden(p):
        for way, how, by_what, narrow in ways:
            names, mends = ("; ".join(filter(None, two)) for two in ((name, way), (mend, how)))
            if names:
                yield Mistake(names, mends, within(mask, by_what, by_what, narrow))


def _hidden(p: Packing) -> Iterator[tuple[str, str, Tensor]]:
    """The right mask and known wrong ones, without a window: a name, what to do, and the mask."""
    T, real = len(p.real), p.real
    full, causal = p.meant.mask & real, causal_mask(T)
    same = p.parts[:, None] == p.parts
    after = torch.ones(T, T, dtype=torch.bool).triu(1).tril(1)
    yield "", "", full
    if not real.all():
        yield "padding may be attended to", PADDING, full | (causal & ~real)
    yield CAUSAL, BLOCK, causal & real
    yield f"{CAUSAL}, and padding may be attended to", f"{BLOCK}; {PADDING}", causal
    bools = "give a bool mask where bool is meant; to be added, 0 shows and -inf hides"
    yield NOTHING, bools, torch.ones_like(full)
    yield NOTHING, "hide later tokens and other prompts", real.expand(T, T)
    later = "later tokens of a prompt may be attended to: the mask is not causal"
    yield later, "hide later tokens", full | full.T
    turn = "transpose it: a row for each query, a column for each key"
    yield "the mask is transposed: its rows are keys", turn, full.T
    sign = "invert it, or change its sign: True, or 0 if it is added, shows"
    yield "the mask is inverted: it shows what it must hide", sign, ~full
    itself = "show each token to itself: key <= query, not key < query"
    diagonal = full & ~torch.eye(T, dtype=torch.bool)
    yield "a token may not attend to itself: the diagonal is missing", itself, diagonal
    yield "the diagonal is off by one, over all borders", SHORTER, full | after
    yield "the diagonal is off by one", SHORTER, full | (after & same)
    if p.is_tree:
        stems = torch.isin(p.parts, p.parts[p.meant.parents < 0])
        yield "a branch may not attend to the trunk", "show it the trunk", full & same
        flat = "the tree is read as one trunk and leaves: what is between them is hidden"
        yield flat, "show each token all of its ancestors", full & (same | stems)
        return
    for shift, kept in ((1, 0), (-1, -1)):
        parts = p.parts.roll(shift)
        parts[kept] = p.parts[kept]
        moved = "the borders of the documents are off by one"
        count = "cu_seqlens counts from 0, and an end is the next document's first token"
        yield moved, count, causal & real & (parts[:, None] == parts)


def positions(p: Packing) -> Iterator[tuple[str, Tensor]]:
    """Known wrong positions: a name, and (T,) int64."""
    depth, index = p.meant.positions, torch.arange(len(p.real))
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
