"""How many trials are enough, and does the size of a group matter when they are?

    python -m tools.studies.sensitivity runs/llama-sensitivity runs/mistral-sensitivity

Of runs of `minise eval --experiment sensitivity`: points of accuracy that N trials have more than
the limit of infinitely many ("exact"; where a group size has none, than its largest N), for each
group size m; and that each limit has more than the first. Intervals: 95%, by fact.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from minise.evaluation.metrics import difference
from minise.evaluation.samples import read_samples, samples_path
from minise.methods.sample import Sample
from minise.report.results import Results, read_results
from minise.report.tables import percent
from tools.markdown import table

EXACT = "exact"
Cells = dict[str, dict[str, list[Sample]]]  # by m, then by N


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folders", type=Path, nargs="+", metavar="DIR")
    runs = [(read_results(folder), folder) for folder in parser.parse_args().folders]
    cells = {run.model: cells_of(run, folder) for run, folder in runs}
    trials = list(dict.fromkeys(N for of in cells.values() for of_m in of.values() for N in of_m))
    heads = [N.replace("n", "N=") for N in trials if N != EXACT]
    rows = [
        [model, f"m={m}", *gains(of_m, trials)]
        for model, of in cells.items()
        for m, of_m in of.items()
    ]
    print(table(["model", "group size", *heads], rows))
    print()
    sizes = list(dict.fromkeys(m for of in cells.values() for m in of))
    heads = [f"m={m} - m={sizes[0]}" for m in sizes[1:]]
    print(table(["model", *heads], [[model, *limits(of, sizes)] for model, of in cells.items()]))


def cells_of(run: Results, folder: Path) -> Cells:
    """The samples by group size and trials, as in "m4-n20"."""
    cells: Cells = {}
    ((task, methods),) = run.raw["results"].items()
    for name in methods:
        size, _, trials = name.partition("-")
        cells.setdefault(size.removeprefix("m"), {})[trials] = read_samples(
            samples_path(folder, task, name)
        )
    return cells


def gains(of_m: dict[str, list[Sample]], trials: Sequence[str]) -> list[str]:
    """Each number of trials minus the limit."""
    last = limit(of_m)
    texts = {N: lead(samples, of_m[last]) for N, samples in of_m.items() if last != N}
    return [texts.get(N, "-") for N in trials if N != EXACT]


def limits(of: Cells, sizes: Sequence[str]) -> list[str]:
    """The limit of each group size minus that of the first."""
    first, *others = (of[m][limit(of[m])] for m in sizes)
    return [lead(samples, first) for samples in others]


def limit(of_m: dict[str, list[Sample]]) -> str:
    return EXACT if EXACT in of_m else list(of_m)[-1]


def lead(a: Sequence[Sample], b: Sequence[Sample]) -> str:
    measured = difference(a, b)
    return percent(measured["accuracy"], measured["interval"], "+.1f")


if __name__ == "__main__":
    main()
