"""Is another's packed row equal to separate runs? Its mask, positions and labels are compared with
those that were meant: the first wrong place, and the known mistake that explains it, if it is one
that docs/zoo.md tells of. Another mistake is one more line of `known_masks` or `known_positions`.
On the page, page/check.js finds the first wrong place too: tests/lab/page compares the two.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from minise.attention import within
from minise.lab.packing.beside import judge_beside
from minise.lab.packing.borders import Borders, Differences, seen_by_any
from minise.lab.packing.classes import Call, of_model
from minise.lab.packing.conditions import Condition, conditions_of, judge_axes, rows_of
from minise.lab.packing.formats import Finding
from minise.lab.packing.labels import judge_labels, repeated_trunk
from minise.lab.packing.names import by_our_names
from minise.lab.packing.packing import Packing, rows_of_batch
from minise.lab.packing.picture import draw
from minise.layout import causal_mask

CAUSAL = "the mask is causal over the whole row, there is no block mask"
NOTHING = "nothing is hidden: every token may attend to every other"
INVERTED = "the mask is inverted: it shows what it must hide"
FLAT = "the tree is read as one trunk and leaves: what is between them is hidden"
PADDING_SHOWN = "padding may be attended to"
MOVED = "a border stands at a wrong place"
SMALL = 40  # tokens of a row that is drawn
MEND = (
    "show each token its own prompt up to itself: by cu_seqlens, a block mask, or a mask_mod "
    "that compares prompts; in a bool mask True shows, in one that is added 0"
)
LEAVE_OUT = (
    "leave the attention_mask out: beside a row of 0 and 1, even of ones, transformers does not go "
    "by positions that start over (sdpa and eager; with a 0 in it flash attention too)"
)
BIASED = "add 0 or minus infinity alone, and compare the bias with that of separate runs yourself"
RESTARTS = (
    "positions start over where documents begin, but no field says that the model goes by them: if "
    "it does, as transformers without a cache and a mask, give restarts=True"
)
UNJUDGED = "put them into a document or a branch, or say that they are padding (docs/check.md)"


@dataclass(frozen=True)
class Report:
    """What was found in `tokens` tokens of `prompts` documents or branches, in all rows of a batch.
    unjudged: how many tokens are of no prompt, and not said to be padding, or are read with a bias.
    notes: which they are, and which are padding. conditions: what must hold of a model, where none
    is given. picture: the mask, if a small row is wrong."""

    tokens: int
    prompts: int
    findings: tuple[Finding, ...]
    picture: str = ""
    unjudged: int = 0
    notes: tuple[str, ...] = ()
    conditions: tuple[Condition, ...] = ()

    @property
    def equal(self) -> bool:
        """Whether the row is equal to the separate runs, on the `conditions`, and every token of it
        was judged."""
        return not self.findings and not self.unjudged

    def __add__(self, other: Report) -> Report:
        """The report of the rows of both."""
        return Report(
            tokens=self.tokens + other.tokens,
            prompts=self.prompts + other.prompts,
            findings=self.findings + other.findings,
            picture=self.picture + other.picture,
            unjudged=self.unjudged + other.unjudged,
            notes=self.notes + other.notes,
            conditions=tuple(dict.fromkeys(self.conditions + other.conditions)),
        )

    def __str__(self) -> str:
        verdict = "equal to the separate runs"
        if self.findings:
            verdict = f"NOT {verdict}"
        if self.unjudged:
            tokens = "token that was" if self.unjudged == 1 else "tokens that were"
            also = "and" if self.findings else "but for"
            verdict += f", {also} {self.unjudged:,} {tokens} not judged"
        if self.conditions and not self.findings:
            verdict += "".join(f", if {condition.words}" for condition in self.conditions)
        parts = [f"{self.tokens:,} tokens, {self.prompts:,} separate prompts: {verdict}"]
        for finding in self.findings:
            lines = [
                f"{finding.what}: {finding.words}",
                f"  wrong: {finding.wrong:,} of {finding.of:,}",
                f"  to mend it: {finding.mend}",
            ]
            parts.append("\n".join(lines))
        if self.conditions and not self.findings:
            parts.append("\n".join(f"if {one.words}: {one.how}" for one in self.conditions))
        if self.notes:
            parts.append("\n".join(self.notes))
        if self.picture:
            parts.append(self.picture)
        return "\n\n".join(parts)


def check(*, model: Any = None, **fields: Any) -> Report:
    """Whether a packed row is equal to separate runs of its documents or branches, and what is
    wrong if not. `print(report)` says it in words; report.findings has it in parts.

    fields: what was meant, and what a model is given, as docs/check.md lists, by the names there or
    by those of a collator: check(documents=[3, 2], **batch). Values are lists, arrays or tensors;
    None counts as not given. A batch of several rows has what was meant for each; then words begin
    with the row. model: one of transformers. With it the verdict is for this model: by the table of
    classes, its config and its attention; nothing is run. Without it a row whose documents the
    model itself must find is equal on report.conditions. Raises InputError for fields that are
    malformed, unknown, or contradict each other, and for another model.
    """
    batch = by_our_names(fields)
    call = Call(batch.use_cache, rows_of(batch.fields))
    rows = rows_of_batch(batch.fields)
    reports = []
    for number, row_fields in enumerate(rows):
        words_begin = f"row {number}: " if len(rows) > 1 else ""
        reports.append(judge(Packing(row_fields, number), words_begin, model, call))
    report = sum(reports[1:], reports[0])
    notes = dict.fromkeys((*report.notes, *batch.notes))  # each once
    return replace(report, notes=tuple(notes))


def judge(p: Packing, words_begin: str, model: Any, call: Call) -> Report:
    """The report of one row. words_begin: what its words begin with."""
    findings = list(p.faults)
    judged = (judge_mask(p), judge_positions(p), judge_axes(p), *judge_labels(p), *judge_beside(p))
    for finding in judged:
        if finding is not None:
            findings.append(finding)

    notes = []
    conditions = []
    doubts = []
    if model is not None:
        decided = of_model(p, model, call)
        findings += decided.findings
        doubts = decided.doubts
        notes += [f"not judged: {doubt}" for doubt in doubts]
    elif not findings:
        conditions = conditions_of(p)
    conditions += repeated_trunk(p)
    of_none = ~p.real & ~p.padding
    if of_none.any():
        parts = p.parts[seen_by(p, of_none) & p.real].unique().tolist()
        prompts = listed([p.names[part] for part in parts]) or "no prompt"
        which = f"{words_begin}{token_list(of_none)}: of no prompt"
        notes.append(f"{which}, may attend to {prompts}; nothing is promised")
        notes.append(f"  to mend it: {UNJUDGED}")
    has_bias = torch.zeros_like(p.real)
    if p.biased is not None:
        has_bias = p.biased.any(dim=1) & p.real
    if p.biased is not None and has_bias.any():
        row, column = (p.biased & has_bias[:, None]).nonzero()[0].tolist()
        which = f"{words_begin}{token_list(has_bias)}: the mask adds a bias"
        first = f"to the score of token {row} with token {column} less than with another"
        notes.append(f"{which}, {first}; it is not judged")
        notes.append(f"  to mend it: {BIASED}")
    if p.padding.any():
        which = f"{words_begin}{token_list(p.padding)}"
        notes.append(f"{which}: padding, as the row says; nothing is promised")

    is_causal = any(finding.name == CAUSAL for finding in findings)
    if is_causal and p.source is None and not p.has_row_mask and starts_over(p):
        notes.append(f"{words_begin}{RESTARTS}")

    picture = ""
    is_drawn = any(finding.what in ("mask", "positions") for finding in findings)
    if is_drawn and p.T <= SMALL:
        picture = draw(p)
        if words_begin:
            picture = f"{words_begin}\n{picture}\n"
    return Report(
        tokens=p.T,
        prompts=len(p.meant.ends),
        findings=tuple(replace(one, words=words_begin + one.words) for one in findings),
        picture=picture,
        unjudged=p.T if doubts else int((of_none | has_bias).sum()),
        notes=tuple(notes),
        conditions=tuple(conditions),
    )


def starts_over(p: Packing) -> bool:
    """Whether the positions alone say which documents there are."""
    is_right = torch.equal(p.positions[0][p.real], p.places[0][p.real])
    return is_right and "the trunk" not in p.names


def seen_by(p: Packing, where: Tensor) -> Tensor:
    """(T,) bool: the tokens to which at least one of these may attend."""
    if p.segments is None:
        return p.mask[where].any(dim=0)
    return seen_by_any(p.segments, p.hidden, where)


def token_list(where: Tensor) -> str:
    """The tokens where this is set, such as "tokens 3, 6 and 7"."""
    rows = [str(row) for row in where.nonzero().flatten().tolist()]
    word = "token" if len(rows) == 1 else "tokens"
    return f"{word} {listed(rows)}"


def listed(words: list[str], most: int = 6) -> str:
    """Such as "a, b and c"; of many the first ones."""
    if len(words) > most:
        words = [*words[:most], f"{len(words) - most:,} more"]
    if len(words) < 2:
        return "".join(words)
    return f"{', '.join(words[:-1])} and {words[-1]}"


# ---- the known mistakes


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
