"""Paired differences between runs that asked the same questions."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations, product
from pathlib import Path
from typing import Any

from minise.evaluation.metrics import difference
from minise.evaluation.samples import read_samples, samples_path
from minise.methods.sample import Sample
from minise.report.results import Results, tell_apart


def across(folders: Sequence[Path], runs: Sequence[Results]) -> list[dict[str, Any]]:
    """What each run measured minus what an earlier one did, over the questions that both asked
    under one seed: `metrics.difference`, with the task and the names of the two sides.

    Methods of one kind are compared; one whose name stands in both runs, such as a cell of a sweep,
    only with that of its name. In runs of one model a method that only one of them has is also
    compared with all of the other. Two models are compared where their weights are packed alike.
    Left out is what both answered alike, to the last bit.
    """
    apart = tell_apart(runs)
    sides = [
        list(zip(shown.cells, _samples(folder, run), strict=True))
        for folder, run, shown in zip(folders, runs, apart, strict=True)
    ]
    differences = []
    for before, after in combinations(sides, 2):
        methods = {cell.method for cell, _ in before} & {cell.method for cell, _ in after}
        in_both = {cell.name for cell, _ in before} & {cell.name for cell, _ in after}
        for (a, of_a), (b, of_b) in product(after, before):
            if a.method == b.method:
                related = a.name == b.name or not {a.name, b.name} & in_both
                related &= a.model == b.model or a.quantize == b.quantize
            else:
                related = a.model == b.model and not {a.method, b.method} <= methods
            if a.task != b.task or not related:
                continue
            pairs = [(of_a[question], of_b[question]) for question in of_a if question in of_b]
            if any(one.probabilities != other.probabilities for one, other in pairs):
                measured = difference(*map(list, zip(*pairs, strict=True)))
                names = {"a": f"{a.label}: {a.name}", "b": f"{b.label}: {b.name}"}
                differences.append({"task": a.task, **names, **measured})
    return differences


def _samples(folder: Path, run: Results) -> list[dict[Any, Sample]]:
    """The samples of each cell of a run, by seed and question; none where the folder has lost
    them."""
    cells = []
    for task, methods in run.raw["results"].items():
        for name in methods:
            samples = read_samples(samples_path(folder, task, name))
            cells.append({(s.key, s.question_hash, s.answer): s for s in samples})
    return cells
