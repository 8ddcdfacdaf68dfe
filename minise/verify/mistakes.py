"""The masks and positions that others gave a packed row by mistake, as docs/zoo.md tells them.

A wrong row is compared with each, in this order: the right mask stands first, so that a wrong
window has its own name. Another mistake is one more line. Dimension legend: T tokens of the row.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import torch
from torch import Tensor

from minise.attention import within
from minise.layout import causal_mask
from minise.verify.packing import Packing

CAUSAL = "the mask is causal over the whole row, there is no block mask"
NOTHING = "nothing is hidden: every token may attend to every other"
FLAT = "the tree is read as one trunk and leaves: what is between them is hidden"
MOVED = "the borders of the documents are off by one"


def masks(p: Packing) -> Iterator[tuple[str, Tensor]]:
    """Known masks (T, T) with each known way to apply the window, if there is one: a name, and the
    mask. The name of the right one is empty."""
    real, causal, depth, window = (
        p.real,
        causal_mask(p.T),
        p.meant.positions,
        p.fields.get("window"),
    )
    full, same = p.meant.mask & real, p.parts[:, None] == p.parts
    stems = torch.isin(p.parts, p.parts[p.meant.parents < 0])
    before, after = p.parts[(p.index - 1).clamp(min=0)], p.parts[(p.index + 1).clamp(max=p.T - 1)]
    known = [
        ("", full),
        ("padding may be attended to", full | (causal & ~real)),
        (CAUSAL, causal & real),
        (f"{CAUSAL}, and padding may be attended to", causal),
        (NOTHING, torch.ones_like(full)),
        (NOTHING, real.expand_as(full)),
        ("later tokens of a prompt may be attended to: the mask is not causal", full | full.T),
        ("the mask is transposed: its rows are keys", full.T),
        ("the mask is inverted: it shows what it must hide", ~full),
        ("a token may not attend to itself: the diagonal is missing", full.tril(-1)),
        ("the diagonal is off by one", full | same.triu(1).tril(1)),
        ("a branch may not attend to the trunk", full & same),
        (FLAT, full & (same | stems)),
        (MOVED, causal & real & (before[:, None] == before)),
        (MOVED, causal & real & (after[:, None] == after)),
    ]
    ways = [("", depth, window)]
    if window:
        ways += [
            ("the window is counted by index, not by position", p.index, window),
            ("the window is not applied", depth, None),
            ("the window is one too wide", depth, window + 1),
            ("the window is one too narrow", depth, window - 1),
        ]
    for (name, mask), (way, by, size) in product(known, ways):
        yield "; ".join(filter(None, (name, way))), within(mask, by, by, size)


def positions(p: Packing) -> Iterator[tuple[str, Tensor]]:
    """Known wrong positions: a name, and (T,) int64."""
    depth, is_tree = p.meant.positions, "the trunk" in p.names
    if not is_tree:
        yield "positions run on, and do not start over with each document", p.real.cumsum(0) - 1
    yield "positions are by index: they count every token of the row", p.index
    yield "positions start at 1, not at 0", depth + 1
    restart = p.index - torch.searchsorted(p.parts, p.parts)
    yield "positions start over at 0 with each branch, and do not go on from the trunk", restart
    kind = "branches" if is_tree else "documents after the first"
    yield f"positions of the {kind} are off by one", depth + (p.parts != p.parts[0]).long()
