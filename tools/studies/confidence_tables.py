"""The tables on confidence in docs/real.md that need more than one cell's numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

from tools import markdown
from tools.studies.confidence import READINGS, Told, auroc, by_trial, over, under
from tools.studies.records import answers_of, minus

GAINS = {
    "AUROC": ("auroc", 1, "+.3f"),
    "under, one scale": ("matched_under", 100, "+.1f"),
    "over, one scale": ("matched_over", 100, "+.1f"),
    "under": ("under", 100, "+.1f"),
    "over": ("over", 100, "+.1f"),
}


def as_scale_free(spec: dict[str, Any]) -> str:
    """rows: a label and two cells; the first minus the second, with intervals."""
    body = []
    for label, a, b in spec["rows"]:
        found = minus(a, b)
        row = [label]
        for name, factor, digits in GAINS.values():
            value = format(factor * found[name], digits)
            low, high = (format(factor * end, digits) for end in found[f"{name}_interval"])
            row.append(f"{value} [{low}, {high}]")
        body.append(row)
    return markdown.table([spec["head"], *GAINS], body)


def as_readings(spec: dict[str, Any]) -> str:
    """rows: a label, a cell that was recorded with its groups, and one of standard inference. Every
    reading of f of the first, after the second."""
    body = []
    for _, cell, standard in spec["rows"]:
        answers = answers_of(cell)
        right = np.array([answer.answer for answer in answers])
        p, null = by_trial(answers)
        ones = {"standard": Told(np.array([one.normalized for one in answers_of(standard)]), right)}
        ones |= {name: Told(reading(p, null), right) for name, reading in READINGS.items()}
        for name, one in ones.items():
            ratios = [f"{100 * of(one.f, one.right):.1f}" for of in (under, over)]
            body.append([name, *ratios, f"{auroc(one.f, one.right):.3f}"])
    return markdown.table([spec["head"], "under", "over", "AUROC"], body)
