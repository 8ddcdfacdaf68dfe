"""Which mistakes in masks and positions are known, and which of them a row has: the first wrong
place, and the mistake that explains it, if it is one that docs/zoo.md tells of. Another mistake is
one more line of `known_masks` or `known_positions`.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from minise.attention import within
from minise.lab.packing.borders import Borders, Differences
from minise.lab.packing.formats import Finding
from minise.lab.packing.packing import Packing
from minise.layout import causal_mask

CAUSAL = "the mask is causal over the whole row, there is no block mask"
NOTHING = "nothing is hidden: every token may attend to every other"
INVERTED = "the mask is inverted: it shows what it must hide"
FLAT = "the tree is read as one trunk and leaves: what is between them is hidden"
PADDING_SHOWN = "padding may be attended to"
MOVED = "a border stands at a wrong place"
MEND = (
    "show each token its own prompt up to itself: by cu_seqlens, a block mask, or a mask_mod "
    "that compares prompts; in a bool mask True shows, in one that is added 0"
)
LEAVE_OUT = (
    "leave the attention_mask out: beside a row of 0 and 1, even of ones, transformers does not go "
    "by positions that start over (sdpa and eager; with a 0 in it flash attention too)"
)


def known_masks(p: Packing) -> Iterator[tuple[str, Tensor]]:
    """Known wrong masks: a name, and (T, T) bool."""
    causal = causal_mask(p.T)
    right = p.meant.mask & p.real
    is_own_part = p.parts[:, None] == p.parts
    is_in_trunk = torch.isin(p.parts, p.parts[p.meant.parents < 0])
    known = [
        (PADDING_SHOWN, right | (causal & ~p.real)),
        (CAUSAL, causal & p.real),
        (f"{CAUSAL}, and {PADDING_SHOWN}", causal),
        (NOTHING, torch.ones_like(right)),
        (INVERTED, ~right),
        (FLAT, right & (is_own_part | is_in_trunk)),
    ]
    depth = p.meant.positions
    window = p.fields.get("window")
    if window is not None:
        yield "the window is one too wide", within(right, depth, depth, window + 1)
    for name, mask in known:
        yield name, within(mask, depth, depth, window)


def known_positions(p: Packing) -> Iterator[tuple[str, Tensor]]:
    """Known wrong positions: a name, and (T,) int64."""
    if "the trunk" not in p.names:
        yield "positions run on, and do not start over with each document", p.real.cumsum(0) - 1
    yield "positions are by index: they count every token of the row", p.index


def name_of(known: Iterator[tuple[str, Tensor]], given: Tensor, where: Tensor) -> str:
    """The name of the first known mistake that is what was given; empty if none is."""
    for name, mistake in known:
        differs = (mistake != given) & where
        if not differs.any():
            return name
    return ""


def name_of_borders(borders: Borders) -> str:
    """The same of a mask by borders. Of the known masks these are causal in segments."""
    if borders.shows_all(documents=False, padding=True):
        return PADDING_SHOWN
    if borders.shows_all(documents=True, padding=False):
        return CAUSAL
    if borders.shows_all(documents=True, padding=True):
        return f"{CAUSAL}, and {PADDING_SHOWN}"
    return ""


# ---- mask and positions


def judge_mask(p: Packing) -> Finding | None:
    borders = None
    # Where all see themselves; a mask that hides a token from itself may be an inverted one.
    if p.segments is not None and "documents" in p.fields and not (p.hidden & p.real).any():
        borders = Borders(p.segments, p.parts, p.hidden, p.real)
    differences = compare_masks(p) if borders is None else borders.differences()
    if differences is None:
        return None
    if borders is not None:
        name = name_of_borders(borders)
    else:
        name = name_of(known_masks(p), p.mask, p.real[:, None])
    row = differences.row
    column = differences.column
    may = "may attend to" if differences.is_leak else "may not attend to"
    seen = "itself" if row == column else p.token(column).rstrip(",")
    leaks = differences.leaks
    missing = differences.missing
    moved = "" if name else moved_border(p, borders)
    if moved:
        name = MOVED
    why = moved or name or f"no known mistake; {leaks:,} cells leak and {missing:,} are missing"
    words = f"{p.token(row)} {may} {seen}: {why}"
    is_switched_off = p.has_row_mask and p.source in (None, "restarts") and CAUSAL in name
    mend = LEAVE_OUT if is_switched_off and starts_over(p) else MEND
    return Finding("mask", words, name, leaks + missing, int(p.real.sum()) * p.T, mend)


def moved_border(p: Packing, borders: Borders | None) -> str:
    """Which border stands at a wrong place, if the mask is causal in documents; else empty."""
    if borders is None:
        first = p.mask.byte().argmax(dim=1)  # that each token may attend to
        in_each = causal_mask(p.T) & (first[:, None] == first) & p.real
        if not torch.equal(p.mask[p.real], in_each[p.real]):
            return ""
        borders = Borders(first, p.parts, ~p.real, p.real)
    return "" if "the trunk" in p.names else borders.moved()


def compare_masks(p: Packing) -> Differences | None:
    """How the mask differs from the right one. What padding reads does not matter."""
    wrong = (p.mask != p.right) & p.real[:, None]
    if not wrong.any():
        return None
    row, column = wrong.nonzero()[0].tolist()
    return Differences(
        row=row,
        column=column,
        is_leak=bool(p.mask[row, column]),
        leaks=int((wrong & p.mask).sum()),
        missing=int((wrong & ~p.mask).sum()),
    )


def judge_positions(p: Packing) -> Finding | None:
    shift = torch.where(p.real, p.positions - p.places, 0)
    if not shift.any():
        return None
    row, axis = shift.T.nonzero()[0].tolist()
    name = name_of(known_positions(p), p.positions, p.real)
    mend = "number the tokens of each prompt 0, 1, 2, ..., as if it were alone"
    later = p.meant.parents >= 0
    parents = p.meant.parents[later]
    if torch.equal(shift[:, later], shift[:, parents]):
        mend += "; with rotary positions alone, a shift of a whole prompt changes only rounding"
    given = int(p.positions[axis, row])
    place = int(p.places[axis, row])
    in_axis = f" in axis {axis}" if len(shift) > 1 else ""
    why = name or "no known mistake"
    words = f"{p.token(row)} has the position {given}, not {place}{in_axis}: {why}"
    wrong = int(shift.any(dim=0).sum())
    return Finding("positions", words, name, wrong, int(p.real.sum()), mend)


def starts_over(p: Packing) -> bool:
    """Whether the positions alone say which documents there are."""
    is_right = torch.equal(p.positions[0][p.real], p.places[0][p.real])
    return is_right and "the trunk" not in p.names
