"""Is another's packed row equal to separate runs? Its mask, positions and labels are compared with
those that were meant (mistakes.py, labels.py, beside.py), and what a model goes by (classes.py).
On the page, page/check.js finds the first wrong place too: tests/lab/page compares the two.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from minise.lab.packing.beside import judge_beside
from minise.lab.packing.borders import seen_by_any
from minise.lab.packing.classes import Call, of_model
from minise.lab.packing.conditions import Condition, conditions_of, judge_axes, rows_of
from minise.lab.packing.formats import Finding
from minise.lab.packing.labels import judge_labels, repeated_trunk
from minise.lab.packing.mistakes import CAUSAL, judge_mask, judge_positions, starts_over
from minise.lab.packing.names import by_our_names
from minise.lab.packing.packing import Packing, rows_of_batch
from minise.lab.packing.picture import draw

SMALL = 40  # tokens of a row that is drawn
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
