"""All measures of finished runs, and the differences between methods in accuracy and in NLL.

    python -m tools.studies.measures runs/llama-main runs/mistral-main runs/qwen2-main

`minise report` has a table for each measure; here a row has them all. Accuracy, under- and
over-confidence (f < 0.5 of right answers, f > 0.5 of wrong ones) and differences in accuracy in
percent, NLL in nats. "matched": at the temperature that is best for other questions. Intervals:
95%, by fact (`summarise` and `difference` in minise/evaluation/metrics.py).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from minise.report.results import Cell, read_results
from minise.report.tables import number, percent
from tools.markdown import table

MEASURES: dict[str, tuple[str, Callable[..., str]]] = {
    "accuracy": ("accuracy", percent),
    "NLL": ("nll", number),
    "matched NLL": ("nll_matched", number),
    "Brier": ("brier", number),
    "ECE": ("ece_width", number),
    "AUROC": ("auroc", number),
    "under-confidence": ("under_confidence", percent),
    "over-confidence": ("over_confidence", percent),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folders", type=Path, nargs="+", metavar="DIR")
    cells = [cell for folder in parser.parse_args().folders for cell in read_results(folder).cells]
    print(table(["model", "task", "method", *MEASURES], map(measures, cells)))
    print()
    heads = ["model", "task", "difference", "accuracy", "NLL", "matched NLL"]
    print(table(heads, (row for cell in cells for row in differences(cell))))


def measures(cell: Cell) -> list[str]:
    values = [text(cell.metrics, name, show) for name, show in MEASURES.values()]
    return [cell.model, cell.task, cell.name, *values]


def differences(cell: Cell) -> Iterator[list[str]]:
    """A row for each difference of the cell from another."""
    for d in cell.differences:
        gain = percent(d["accuracy"], d["interval"], "+.1f")
        losses = [text(d, name, number, "+.3f") for name in ("nll", "nll_matched")]
        yield [cell.model, cell.task, f"{d['a']} - {d['b']}", gain, *losses]


def text(numbers: dict[str, Any], name: str, show: Callable[..., str], *form: str) -> str:
    """A number with its interval; "-" where it is not defined."""
    value = numbers[name]
    return "-" if value is None else show(value, numbers[f"{name}_interval"], *form)


if __name__ == "__main__":
    main()
