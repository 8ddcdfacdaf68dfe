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

    Methods of one name are compared; in runs of one model also a method that only one of the runs
    has with all of the other. Left out is what both answered alike, to the last bit.
    """
    sides = [  # cells with their samples, by what was asked
        list(zip(told.cells, _samples(folder, run), strict=True))
        for folder, run, told in zip(folders, runs, tell_apart(runs), strict=True)
    ]
    found = []
    for before, after in combinations(sides, 2):
        both = {cell.method for cell, _ in before} & {cell.method for cell, _ in after}
        for (a, of_a), (b, of_b) in product(after, before):
            alone = a.model == b.model and not {a.method, b.method} <= both
            if a.task != b.task or not (a.method == b.method or alone):
                continue
            shared = [(of_a[asked], of_b[asked]) for asked in of_a if asked in of_b]
            if any(one.probabilities != other.probabilities for one, other in shared):
                measured = difference(*map(list, zip(*shared, strict=True)))
                names = {"a": f"{a.label}: {a.name}", "b": f"{b.label}: {b.name}"}
                found.append({"task": a.task, **names, **measured})
    return found


def _samples(folder: Path, run: Results) -> list[dict[Any, Sample]]:
    """The samples of each cell of a run; none where the folder has not kept them."""
    named = [(task, name) for task, methods in run.raw["results"].items() for name in methods]
    return [
        {(s.key, s.question_hash, s.answer): s for s in read_samples(samples_path(folder, *one))}
        for one in named
    ]
