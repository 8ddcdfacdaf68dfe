"""Paired differences between runs that asked the same questions."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

from minise.evaluation.metrics import difference
from minise.evaluation.results import Cell, Results, tell_apart
from minise.evaluation.samples import Sample, read_samples, samples_path

Side = list[tuple[Cell, dict[Any, Sample]]]  # cells with their samples, by what was asked


def across(folders: Sequence[Path], runs: Sequence[Results]) -> list[dict[str, Any]]:
    """What each run measured minus what an earlier one did, over the questions that both asked
    under one seed: `metrics.difference`, with the task and the names of the two sides.

    Methods of one name are compared; in runs of one model also a method that only one of the runs
    has with all of the other. Left out is what both answered alike, to the last bit.
    """
    sides = [
        list(zip(told.cells, _samples(folder, run), strict=True))
        for folder, run, told in zip(folders, runs, tell_apart(runs), strict=True)
    ]
    found = []
    for before, after in combinations(sides, 2):
        for (b, of_b), (a, of_a) in _pairs(before, after):
            shared = [(of_a[asked], of_b[asked]) for asked in of_a if asked in of_b]
            if any(one.probabilities != other.probabilities for one, other in shared):
                measured = difference(*map(list, zip(*shared, strict=True)))
                names = {"a": f"{a.label}: {a.name}", "b": f"{b.label}: {b.name}"}
                found.append({"task": a.task, **names, **measured})
    return found


def _pairs(before: Side, after: Side) -> list[tuple[Any, Any]]:
    names = [{cell.method for cell, _ in side} for side in (before, after)]
    both = names[0] & names[1]
    return [
        (old, new)
        for new in after
        for old in before
        if old[0].task == new[0].task
        and (
            old[0].method == new[0].method
            or (old[0].model == new[0].model and not {old[0].method, new[0].method} <= both)
        )
    ]


def _samples(folder: Path, run: Results) -> list[dict[Any, Sample]]:
    """The samples of each cell of a run; none where the folder has not kept them."""
    named = [(task, name) for task, methods in run.raw["results"].items() for name in methods]
    return [
        {(s.key, s.question_hash, s.answer): s for s in read_samples(samples_path(folder, *one))}
        for one in named
    ]
