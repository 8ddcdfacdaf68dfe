"""Is another's packed row equal to separate runs? Its mask, positions and labels are compared with
those that were meant: the first wrong place, and the known mistake that explains it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from minise.verify import mistakes
from minise.verify.mistakes import meant_mask
from minise.verify.packing import Finding, Packing, read

IGNORED = -100  # the label of a token that is no target, as in torch's cross_entropy
SMALL = 40  # tokens of a row that is drawn


@dataclass(frozen=True)
class Report:
    """What was found for a row of `tokens` tokens that holds `prompts` documents or branches.
    picture: the mask, if it is wrong and small enough to be drawn."""

    tokens: int
    prompts: int
    findings: tuple[Finding, ...]
    picture: str = ""

    @property
    def equal(self) -> bool:
        """Whether the row is equal to the separate runs."""
        return not self.findings

    def __str__(self) -> str:
        verdict = f"{'' if self.equal else 'NOT '}equal to the separate runs"
        lines = [f"{self.tokens:,} tokens, {self.prompts:,} separate prompts: {verdict}"]
        for one in self.findings:
            lines += ["", f"{one.what}: {one.words}"]
            lines += [f"  wrong: {one.wrong:,} of {one.of:,}", f"  to mend it: {one.mend}"]
        return "\n".join([*lines, *(["", self.picture] if self.picture else [])])


def check(**fields: Any) -> Report:
    """Whether a packed row is equal to separate runs of its documents or branches, and what is
    wrong if not. `print(report)` says it in words; report.findings has it in parts.

    fields: what was meant, and what a model is given, as docs/check.md lists. Values are lists,
    arrays or tensors; a leading batch dimension of 1 is allowed; None counts as not given. Raises
    InputError for fields that are malformed or contradict each other.
    """
    p = read(fields)
    findings = [*p.faults, *_judge_mask(p), *_judge_positions(p), *_judge_labels(p)]
    drawn = any(one.what in ("mask", "positions") for one in findings) and len(p.real) <= SMALL
    return Report(len(p.real), len(p.meant.ends), tuple(findings), draw(p) if drawn else "")


def _judge_mask(p: Packing) -> Iterator[Finding]:
    read = p.real[:, None]  # what padding reads does not matter
    wrong = (p.mask != meant_mask(p)) & read
    if not wrong.any():
        return
    row, column = wrong.nonzero()[0].tolist()
    may = "may attend to" if p.mask[row, column] else "may not attend to"
    seen = "itself" if row == column else p.token(column).rstrip(",")
    leaks = int((wrong & p.mask).sum())
    missing = int(wrong.sum()) - leaks
    why = f"no known mistake; {leaks:,} cells leak and {missing:,} are missing"
    name, mend = "", "show each token the tokens of its own prompt up to itself, and no others"
    for known in mistakes.masks(p):
        if not ((known.mask != p.mask) & read).any():
            name, why, mend = known.name, known.name, known.mend
            break
    words = f"{p.token(row)} {may} {seen}: {why}"
    yield Finding("mask", words, name, leaks + missing, int(read.sum()) * len(p.real), mend)


def _judge_positions(p: Packing) -> Iterator[Finding]:
    meant, given = p.meant.positions, p.positions
    shift = torch.where(p.real, given - meant, 0)
    if not shift.any():
        return
    row = int(shift.nonzero()[0])
    equal = (n for n, one in mistakes.positions(p) if torch.equal(one[p.real], given[p.real]))
    name = next(equal, "")
    mend = "number the tokens of each prompt 0, 1, 2, ..., as if it were alone"
    later = p.meant.parents >= 0
    if torch.equal(shift[later], shift[p.meant.parents[later]]):
        mend += "; with rotary positions alone, a shift of a whole prompt changes only rounding"
    places = f"{int(given[row])}, not {int(meant[row])}"
    words = f"{p.token(row)} has the position {places}: {name or 'no known mistake'}"
    yield Finding("positions", words, name, int((shift != 0).sum()), int(p.real.sum()), mend)


def _judge_labels(p: Packing) -> Iterator[Finding]:
    """A label must be the token that follows its source in a prompt. Shifted: the source is the
    label's own token. Unshifted, as in transformers: it is the token before in the row."""
    parents, tokens = p.meant.parents.tolist(), p.meant.tokens.tolist()
    children: dict[int, list[int]] = {}
    for row, parent in enumerate(parents):
        children.setdefault(parent, []).append(row)
    wrong, words, name = 0, "", ""
    for row, label in enumerate([] if p.labels is None else p.labels.tolist()):
        source, target = (row, row + 1) if p.shifted else (row - 1, row)
        if label == IGNORED or source < 0:  # unshifted, the first has no prediction
            continue
        follow = [one for one in children.get(source, []) if p.shifted or one == target]
        if any(tokens[one] == label or not p.has_tokens for one in follow):
            continue
        wrong += 1
        before = p.token(source).rstrip(",")
        if follow and not words:
            words = f"{before} has the target {label}, which does not follow it"
        elif not words:
            name = "a label crosses a border"
            what = p.token(target) if target < len(parents) else f"the label {label}"
            words = f"{what} is predicted from {before}: {name}"
    if wrong and p.labels is not None:
        mend = f"set it to {IGNORED}: nothing before a prompt's first token predicts it"
        yield Finding("labels", words, name, wrong, int((p.labels != IGNORED).sum()), mend)


def draw(p: Packing) -> str:
    """The mask as text: a line for each token, a column for each token that it could attend to."""
    right = meant_mask(p)
    cells = {(True, True): "█", (False, False): "·", (False, True): "!", (True, False): "o"}
    width = max(8, *map(len, p.names))
    lines = [f"token  {'of':<{width}}  position  attends to"]
    for row, place in enumerate(p.meant.positions.tolist()):
        given = int(p.positions[row])
        pairs = zip(right[row].tolist(), p.mask[row].tolist(), strict=True)
        drawn = "".join(map(cells.__getitem__, pairs)) if p.real[row] else ""
        shown = f"{given}" if given == place or not p.real[row] else f"{given} ({place})"
        name = p.names[int(p.parts[row])]
        lines.append(f"{row:>5}  {name:<{width}}  {shown:>8}  {drawn}".rstrip())
    return "\n".join([*lines, "█ right  · hidden  ! leaks  o missing  (n) the right position"])
