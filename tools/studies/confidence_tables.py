"""The tables on confidence in docs/real.md that need more than one cell's numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

from tools import markdown
from tools.studies.confidence import (
    READINGS,
    as_methods,
    as_tests,
    by_trial,
    comparisons,
    kept,
)
from tools.studies.measures import Told, auroc, over, under
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


def as_unseen(spec: dict[str, Any]) -> str:
    """rows: the methods and readings of confidence.py that are shown, on the set that `data` names:
    the questions that nobody had seen by these measures."""
    return as_methods(kept()[spec["data"]], spec["rows"])


def as_planned(spec: dict[str, Any]) -> str:
    """What the plan compares (docs/confidence.md)."""
    return as_tests(comparisons(kept()))
