"""Is another's packed row equal to separate runs? Its mask, positions and labels are compared with
those that were meant: the first wrong place, and the known mistake that explains it, as docs/zoo.md
tells them. Another mistake is one more line of `known_masks` or `known_positions`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import reduce
from itertools import product
from operator import add
from typing import Any

import torch
from torch import Tensor

from minise.attention import within
from minise.layout import causal_mask
from minise.verify.formats import Finding
from minise.verify.packing import IGNORED, Packing, split

CAUSAL = "the mask is causal over the whole row, there is no block mask"
NOTHING = "nothing is hidden: every token may attend to every other"
FLAT = "the tree is read as one trunk and leaves: what is between them is hidden"
MOVED = "the borders of the documents are off by one"
SMALL = 40  # tokens of a row that is drawn
MEND = "show each token its own prompt up to itself: by cu_seqlens, a block mask, or a mask_mod "
MEND += "that compares prompts; in a bool mask True shows, in one that is added 0"
UNJUDGED = "put them into a document or a branch, or say that they are padding (docs/check.md)"


@dataclass(frozen=True)
class Report:
    """What was found in `tokens` tokens of `prompts` documents or branches, in all rows of a batch.
    unjudged: how many tokens are of no prompt, and not said to be padding. notes: which they are,
    and which are padding. picture: the mask, if a small row is wrong."""

    tokens: int
    prompts: int
    findings: tuple[Finding, ...]
    picture: str = ""
    unjudged: int = 0
    notes: tuple[str, ...] = ()

    @property
    def equal(self) -> bool:
        """Whether the row is equal to the separate runs, and every token of it was judged."""
        return not self.findings and not self.unjudged

    def __str__(self) -> str:
        verdict = f"{'NOT ' * bool(self.findings)}equal to the separate runs"
        if self.unjudged:
            tokens = "tokens that were" if self.unjudged > 1 else "token that was"
            also = "and" if self.findings else "but for"
            verdict += f", {also} {self.unjudged:,} {tokens} not judged"
        parts = [f"{self.tokens:,} tokens, {self.prompts:,} separate prompts: {verdict}"]
        for one in self.findings:
            wrong = f"  wrong: {one.wrong:,} of {one.of:,}\n  to mend it: {one.mend}"
            parts += [f"{one.what}: {one.words}\n{wrong}"]
        return "\n\n".join(filter(None, [*parts, "\n".join(self.notes), self.picture]))


def check(**fields: Any) -> Report:
    """Whether a packed row is equal to separate runs of its documents or branches, and what is
    wrong if not. `print(report)` says it in words; report.findings has it in parts.

    fields: what was meant, and what a model is given, as docs/check.md lists. Values are lists,
    arrays or tensors; None counts as not given. A batch of several rows has what was meant for
    each; then words begin with the row. Raises InputError for fields that are malformed or
    contradict each other.
    """
    rows = split(fields)
    name = "row {}: " if len(rows) > 1 else ""
    judged = [_judge(Packing(one, row), name.format(row)) for row, one in enumerate(rows)]
    # Numbers add up; findings, pictures and notes follow one another.
    return Report(*(reduce(add, column) for column in zip(*judged, strict=True)))


def _judge(p: Packing, row: str) -> tuple[Any, ...]:
    """The fields of a Report. row: what words begin with."""
    findings = [*p.faults, *_judge_mask(p), *_judge_positions(p), *_judge_labels(p)]
    rest, notes, picture = ~p.real & ~p.padding, [], ""
    if rest.any():
        seen = p.parts[p.mask[rest].any(dim=0) & p.real].unique().tolist()
        to = _list([p.names[part] for part in seen]) or "no prompt"
        notes = [f"{row}{_tokens(rest)}: of no prompt, may attend to {to}; nothing is promised"]
        notes += [f"  to mend it: {UNJUDGED}"]
    if p.padding.any():
        notes += [f"{row}{_tokens(p.padding)}: padding, as the row says; nothing is promised"]
    if any(one.what in ("mask", "positions") for one in findings) and p.T <= SMALL:
        picture = f"{row}\n{draw(p)}\n" if row else draw(p)
    findings = [replace(one, words=row + one.words) for one in findings]
    return p.T, len(p.meant.ends), tuple(findings), picture, int(rest.sum()), tuple(notes)


def _tokens(where: Tensor) -> str:
    rows = [f"{row}" for row in where.nonzero().flatten().tolist()]
    return f"token{'s' * (len(rows) > 1)} {_list(rows)}"


def _list(words: list[str], most: int = 6) -> str:
    """Such as "a, b and c"; of many the first ones."""
    words = words[:most] + [f"{len(words) - most:,} more"] * (len(words) > most)
    return " and ".join(filter(None, [", ".join(words[:-1]), *words[-1:]]))


def known_masks(p: Packing) -> Iterator[tuple[str, Tensor]]:
    """Known masks (T, T) with each known way to apply the window, if there is one: a name, and the
    mask. The name of the right one is empty."""
    real, causal = p.real, causal_mask(p.T)
    depth, window = p.meant.positions, p.fields.get("window")
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


def known_positions(p: Packing) -> Iterator[tuple[str, Tensor]]:
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


def _name(known: Iterator[tuple[str, Tensor]], given: Tensor, where: Tensor) -> str:
    """The name of the first known mistake that is what was given."""
    return next((name for name, one in known if not ((one != given) & where).any()), "")


def _judge_mask(p: Packing) -> Iterator[Finding]:
    read = p.real[:, None]  # what padding reads does not matter
    wrong = (p.mask != p.right) & read
    if not wrong.any():
        return
    row, column = wrong.nonzero()[0].tolist()
    may = "may attend to" if p.mask[row, column] else "may not attend to"
    seen = "itself" if row == column else p.token(column).rstrip(",")
    leaks, missing = (int((wrong & one).sum()) for one in (p.mask, ~p.mask))
    name = _name(known_masks(p), p.mask, read)
    why = name or f"no known mistake; {leaks:,} cells leak and {missing:,} are missing"
    words = f"{p.token(row)} {may} {seen}: {why}"
    yield Finding("mask", words, name, leaks + missing, int(read.sum()) * p.T, MEND)


def _judge_positions(p: Packing) -> Iterator[Finding]:
    shift = torch.where(p.real, p.positions - p.places, 0)
    if not shift.any():
        return
    row, axis = shift.T.nonzero()[0].tolist()
    axes = f" in axis {axis}" if len(shift) > 1 else ""
    name = _name(known_positions(p), p.positions, p.real)
    mend = "number the tokens of each prompt 0, 1, 2, ..., as if it were alone"
    later = p.meant.parents >= 0
    if torch.equal(shift[:, later], shift[:, p.meant.parents[later]]):
        mend += "; with rotary positions alone, a shift of a whole prompt changes only rounding"
    places = f"{int(p.positions[axis, row])}, not {int(p.places[axis, row])}{axes}"
    words = f"{p.token(row)} has the position {places}: {name or 'no known mistake'}"
    wrong, real = int(shift.any(dim=0).sum()), int(p.real.sum())
    yield Finding("positions", words, name, wrong, real, mend)


def _judge_labels(p: Packing) -> Iterator[Finding]:
    """A label must be the token that follows its source in a prompt. Shifted: the source is the
    label's own token. Unshifted, as in transformers: it is the token before in the row."""
    ahead = int(p.fields.get("labels_are") == "shifted")
    rows = (p.labels != IGNORED).nonzero().flatten()
    source = rows - 1 + ahead
    follow = p.meant.parents == source[:, None]  # for each label, which tokens follow its source
    follow &= (p.index == rows[:, None]) | bool(ahead)
    right = follow & (p.meant.tokens == p.labels[rows, None] if "input_ids" in p.fields else True)
    wrong = (source >= 0) & ~right.any(dim=1)  # the first, unshifted, has no prediction
    if not wrong.any():
        return
    first = int(wrong.nonzero()[0])
    label, target = int(p.labels[rows[first]]), int(rows[first]) + ahead
    before = p.token(int(source[first])).rstrip(",")
    name = "" if follow[first].any() else "a label crosses a border"
    words = f"{before} has the target {label}, which does not follow it"
    if name:
        what = p.token(target) if target < p.T else f"the label {label}"
        words = f"{what} is predicted from {before}: {name}"
    mend = f"set it to {IGNORED}: nothing before a prompt's first token predicts it"
    yield Finding("labels", words, name, int(wrong.sum()), len(rows), mend)


def draw(p: Packing) -> str:
    """The mask as text: a line for each token, a column for each token that it could attend to."""
    cells, width = "·!o█", max(8, *map(len, p.names))
    lines = [f"token  {'of':<{width}}  position  attends to"]
    for row, numbers in enumerate((2 * p.right.int() + p.mask.int()).tolist()):
        given, place = int(p.positions[0, row]), int(p.places[0, row])
        shown = f"{given} ({place})" if p.real[row] and given != place else f"{given}"
        drawn = "".join(cells[one] for one in numbers) if p.real[row] else ""
        lines.append(f"{row:>5}  {p.names[p.parts[row]]:<{width}}  {shown:>8}  {drawn}".rstrip())
    return "\n".join([*lines, "█ right  · hidden  ! leaks  o missing  (n) the right position"])
