"""Is another's packed row equal to separate runs? If not, the first wrong place in words, and the
known mistake (mistakes.py) that explains it.

`judge` compares the mask, the positions and the labels with those that were meant; `explain`
compares logits with separate runs, and finds the mistake that gives them.

Dimension legend: T tokens of the row; V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor

from minise.attention import masked_attention
from minise.checking import mistakes
from minise.checking.mistakes import CAUSAL, Mistake, meant_mask
from minise.checking.packing import Finding, Packing, numbers
from minise.checking.traces import relative
from minise.engines import LanguageModel, check_fit, check_scores_fit, run_alone
from minise.errors import InputError
from minise.model import Decoder

IGNORED = -100  # the label of a token that is no target, as in torch's cross_entropy
SMALL = 40  # tokens of a row that is drawn
# The largest difference of a row of logits that passes, as a part of its size.
TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 1e-1}


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
        verdict = "equal to the separate runs" if self.equal else "NOT equal to the separate runs"
        lines = [f"{self.tokens:,} tokens, {self.prompts:,} separate prompts: {verdict}"]
        for one in self.findings:
            lines += ["", f"{one.what}: {one.words}"]
            lines += [f"  wrong: {one.wrong:,} of {one.of:,}", f"  to mend it: {one.mend}"]
        return "\n".join([*lines, *(["", self.picture] if self.picture else [])])


def judge(p: Packing) -> Report:
    """What is wrong with the row, and the known mistake that explains it."""
    findings = [*p.faults, *_judge_mask(p), *_judge_positions(p), *_judge_labels(p)]
    drawn = any(one.what in ("mask", "positions") for one in findings) and len(p.real) <= SMALL
    picture = draw(p) if drawn and p.mask is not None else ""
    return Report(len(p.real), len(p.meant.ends), tuple(findings), picture)


def _judge_mask(p: Packing) -> list[Finding]:
    if p.mask is None:
        return []
    read = p.real[:, None]  # what padding reads does not matter
    wrong = (p.mask != meant_mask(p, p.window)) & read
    if not wrong.any():
        return []
    row = int(wrong.any(dim=1).nonzero()[0])
    column = int(wrong[row].nonzero()[0])
    may = "may attend to" if p.mask[row, column] else "may not attend to"
    seen = "itself" if row == column else p.token(column).rstrip(",")
    leaks = int((wrong & p.mask).sum())
    missing = int(wrong.sum()) - leaks
    name, why = "", f"no known mistake; {leaks:,} cells leak and {missing:,} are missing"
    mend = "show each token the tokens of its own prompt up to itself, and no others"
    for known in mistakes.masks(p, [p.window]):
        if not ((known.mask_of(p.window) != p.mask) & read).any():
            name = why = known.name
            mend = known.mend
            break
    words = f"{p.token(row)} {may} {seen}: {why}"
    return [Finding("mask", words, name, leaks + missing, int(read.sum()) * len(p.real), mend)]


def _judge_positions(p: Packing) -> list[Finding]:
    if p.positions is None:
        return []
    shift = torch.where(p.real, p.positions - p.meant.positions, 0)
    if not shift.any():
        return []
    row = int(shift.nonzero()[0])
    equal = (n for n, one in mistakes.positions(p) if torch.equal(one[p.real], p.positions[p.real]))
    name = next(equal, "")
    mend = "number the tokens of each prompt 0, 1, 2, ..., as if it were alone"
    later = p.meant.parents >= 0
    if torch.equal(shift[later], shift[p.meant.parents[later]]):
        mend += "; with rotary positions alone, a shift of a whole prompt changes only rounding"
    places = f"{int(p.positions[row])}, not {int(p.meant.positions[row])}"
    words = f"{p.token(row)} has the position {places}: {name or 'no known mistake'}"
    return [Finding("positions", words, name, int((shift != 0).sum()), int(p.real.sum()), mend)]


def _judge_labels(p: Packing) -> list[Finding]:
    """A label must be the token that follows its source in a prompt. Shifted: the source is the
    label's own token. Unshifted, as in transformers: it is the token before in the row."""
    if p.labels is None:
        return []
    parents, tokens = p.meant.parents.tolist(), p.meant.tokens.tolist()
    children: dict[int, list[int]] = {}
    for row, parent in enumerate(parents):
        children.setdefault(parent, []).append(row)
    wrong, words, name = 0, "", ""
    for row, label in enumerate(p.labels.tolist()):
        source = row if p.shifted else row - 1
        target = source + 1
        if label == IGNORED or source < 0:  # unshifted, the first has no prediction
            continue
        follow = children.get(source, [])
        if not p.shifted:
            follow = [target] if target in follow else []
        if any(tokens[one] == label or not p.has_tokens for one in follow):
            continue
        wrong += 1
        before = p.token(source).rstrip(",")
        if words:
            continue
        if follow:
            words = f"{before} has the target {label}, which does not follow it"
        else:
            name = "a label crosses a border"
            what = p.token(target) if target < len(parents) else f"the label {label}"
            words = f"{what} is predicted from {before}: {name}"
    if not wrong:
        return []
    mend = f"set it to {IGNORED}: nothing before a prompt's first token predicts it"
    return [Finding("labels", words, name, wrong, int((p.labels != IGNORED).sum()), mend)]


def draw(p: Packing) -> str:
    """The mask as text: a line for each token, a column for each token that it could attend to."""
    right = meant_mask(p, p.window)
    mask = right if p.mask is None else p.mask
    cells = {(True, True): "█", (False, False): "·", (False, True): "!", (True, False): "o"}
    width = max(8, *map(len, p.names))
    lines = [f"token  {'of':<{width}}  position  attends to"]
    for row, place in enumerate(p.meant.positions.tolist()):
        given = place if p.positions is None else int(p.positions[row])
        pairs = zip(right[row].tolist(), mask[row].tolist(), strict=True)
        drawn = "".join(map(cells.__getitem__, pairs)) if p.real[row] else ""
        shown = f"{given}" if given == place or not p.real[row] else f"{given} ({place})"
        name = p.names[int(p.parts[row])]
        lines.append(f"{row:>5}  {name:<{width}}  {shown:>8}  {drawn}".rstrip())
    return "\n".join([*lines, "█ right  · hidden  ! leaks  o missing  (n) the right position"])


@torch.inference_mode()
def explain(
    p: Packing, lm: LanguageModel, logits: Any, tolerance: float | None = None
) -> list[Finding]:
    """Compare logits (T, V) of the row with those of each prompt alone; if they differ, name the
    known mistake that gives them. tolerance: the largest difference of a row that passes, as a part
    of its size; by default that of the narrower dtype in TOLERANCE. Raises InputError for logits of
    another shape or dtype, and for prompts that the model cannot run."""
    rows, tokens, paths = numbers("logits", logits), p.meant.tokens, p.meant.paths()
    shape = (len(p.real), lm.config.vocab_size)
    if not isinstance(lm.decoder, Decoder):
        raise InputError(f"{lm.name}: is not run by minise's own decoder; give a folder or hub id")
    if not p.has_tokens or tokens.min() < 0:
        raise InputError("logits need input_ids, from 0, to run the prompts; add them")
    if rows.shape != shape or not rows.is_floating_point():
        given = f"{rows.dtype} of the shape {tuple(rows.shape)}"
        raise InputError(f"logits: are {given}; give floats of {shape[0]}x{shape[1]}")
    check_fit(lm.name, lm.config, [], [tokens[path].tolist() for path in paths])
    check_scores_fit(lm, len(p.real))
    alone = torch.zeros(shape, dtype=lm.decoder.dtype)
    for path in paths:
        alone[path] = lm.logits(run_alone(lm, tokens[path].tolist())).cpu()
    if tolerance is None:
        tolerance = max(TOLERANCE.get(one.dtype, 1e-1) for one in (rows, alone))
    pairs = [(row, alone[row : row + 1], rows[row : row + 1]) for row in p.real.nonzero().flatten()]
    apart = {int(row): relative(a, b) for row, a, b in pairs}
    off = [row for row, difference in apart.items() if not difference <= tolerance]
    if not off:
        return []
    near, name, mend = min(_runs(p, lm, rows), key=itemgetter(0))
    if not near <= tolerance:
        name, mend = "", "give the mask and position_ids as well, which are then checked"
    most = f"by up to {max(apart.values()):.1e} of a row's size, and {tolerance:.0e} passes"
    why = name or "no known mistake gives these logits"
    words = f"{p.token(off[0])} differs from its separate run, {most}: {why}"
    return [Finding("logits", words, name, len(off), len(apart), mend)]


def _runs(p: Packing, lm: LanguageModel, rows: Tensor) -> Iterator[tuple[float, str, str]]:
    """How far the logits are from those of a run with each known mistake, its name, the remedy."""
    windows, decoder = lm.config.sliding_windows, lm.decoder
    alone = torch.diag(~p.real)  # a row that attends to nothing would be NaN, and spread it
    given = p.meant.positions if p.positions is None else p.positions
    places = [("", p.meant.positions), *mistakes.positions(p)]
    right = Mistake("", "", lambda window: meant_mask(p, window))
    for known in (right, *mistakes.masks(p, windows)):
        by_window = {w: (known.mask_of(w) | alone).to(decoder.device) for w in set(windows)}

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor, masks: Any = by_window) -> Tensor:
            return masked_attention(q, k, v, masks[windows[layer]][None])

        for place, positions in places if known.name in ("", CAUSAL) else places[:1]:
            stands = torch.where(p.real, positions, given)
            tokens, stands = (x[None].to(decoder.device) for x in (p.meant.tokens, stands))
            logits = decoder.logits(decoder.run(tokens, stands, attend)[0]).cpu()
            name = "; ".join(filter(None, (known.name, place)))
            apart = relative(logits[p.real], rows[p.real])
            if name:
                mend = known.mend or "number the tokens of each prompt 0, 1, 2, ..."
                yield math.inf if math.isnan(apart) else apart, name, mend
