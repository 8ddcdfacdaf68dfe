"""Print the tables of docs/rivals.md from finished runs of `rivals` or `null-option`.

    python -m tools.studies.rivals runs/llama-8 runs/llama-24 runs/qwen2-8 ...
    python -m tools.studies.rivals cells.jsonl runs/qwen2-8 --record cells.jsonl
    python -m tools.studies.rivals cells.jsonl --task miniature-many-k4 miniature-many-k8

First come accuracy in percent, the NLL at the best temperature and the tokens of a question, with a
column for each model and task, six to a table. Then comes accuracy again for each model, with the
paired difference to Self-Ensemble's in points and its 95% interval beside it, and the other
measures for each task. A sign (+ better than Self-Ensemble, - worse), in the later tables a star,
marks the differences whose p value (McNemar's test) is at most 0.05 after Holm's correction for all
differences of all folders.

`--record FILE` writes what the tables show, a line of JSON for each cell. Such a file may stand in
the place of a folder: then runs of many hours need not be made at once to be corrected together.
Where two have the same model, task and method, the later one counts. `--task` prints the tables of
some tasks alone, corrected for all differences as before.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from minise.report.results import Cell, read_results
from minise.report.tables import holm, percent
from tools.markdown import tell

FIRST = "self-ensemble"
LEVEL = 0.05
WIDEST = 6  # columns of a table


def number(name: str, scale: float = 1, form: str = ".2f") -> Callable[[Cell], str]:
    def text(cell: Cell) -> str:
        value = cell.metrics[name]
        return "-" if value is None else format(scale * value, form)

    return text


MEASURES = {
    "tokens": number("tokens", form=",.0f"),
    "NLL": number("nll"),
    "NLL at the best temperature": number("nll_matched"),
    "Brier": number("brier"),
    "under-confidence": number("under_confidence", 100, ".0f"),
    "over-confidence": number("over_confidence", 100, ".0f"),
}

RECORDED = (
    *("n", "questions", "clusters", "accuracy", "accuracy_interval", "tokens", "nll"),
    *("nll_matched", "brier", "under_confidence", "over_confidence"),
)

in_percent = number("accuracy", 100, ".1f")


def from_first(cell: Cell) -> list[dict[str, Any]]:
    """The cell's difference from Self-Ensemble; none for Self-Ensemble itself."""
    return [d for d in cell.differences if d["b"] == FIRST]


def accuracy(cell: Cell, corrected: dict[int, float]) -> str:
    """Accuracy and the difference. corrected: p values by the ids of differences."""
    text = in_percent(cell)
    for d in from_first(cell):
        star = "*" if corrected[id(d)] <= LEVEL else ""
        text += f" ({percent(d['accuracy'], d['interval'], '+.1f')}{star})"
    return text


def signed(cell: Cell, corrected: dict[int, float]) -> str:
    """Accuracy, with the sign of the difference where that outlives the correction."""
    clear = [d["accuracy"] for d in from_first(cell) if corrected[id(d)] <= LEVEL]
    return " ".join([in_percent(cell), *("+" if gain > 0 else "-" for gain in clear)])


def corrected_ps(cells: Sequence[Cell]) -> dict[int, float]:
    """The p values of all differences from Self-Ensemble after Holm's correction, by their ids."""
    differences = [d for cell in cells for d in from_first(cell)]
    corrected = holm([d["mcnemar_p"] for d in differences])
    return {id(d): p for d, p in zip(differences, corrected, strict=True)}


def overview(title: str, cells: Sequence[Cell], measure: Callable[[Cell], str]) -> None:
    """One measure of all methods, models and tasks, task after task, WIDEST columns to a table. A
    task is named by its last part, as in k8."""
    texts = {(cell.name, cell.model, cell.task): measure(cell) for cell in cells}
    tasks = list(dict.fromkeys(cell.task for cell in cells))
    pairs = dict.fromkeys((cell.model, cell.task) for cell in cells)
    columns = sorted(pairs, key=lambda pair: tasks.index(pair[1]))
    names = dict.fromkeys(cell.name for cell in cells)
    for start in range(0, len(columns), WIDEST):
        shown = columns[start : start + WIDEST]
        heads = [f"{model} {task.rpartition('-')[2]}" for model, task in shown]
        rows = [[name, *(texts.get((name, *column), "-") for column in shown)] for name in names]
        tell(title, ["method", *heads], rows)


def read(paths: Sequence[Path]) -> list[Cell]:
    """The cells of folders of runs and of files that `record` wrote."""
    cells: dict[tuple[str, str, str], Cell] = {}
    for path in paths:
        if path.is_file():
            lines = path.read_text(encoding="utf-8").splitlines()
            of_path = [Cell(**json.loads(line)) for line in lines]
        else:
            of_path = read_results(path).cells
        cells |= {(cell.model, cell.task, cell.name): cell for cell in of_path}
    return list(cells.values())


def record(cells: Sequence[Cell], path: Path) -> None:
    """Write what the tables show of the cells, one to a line."""
    lines = []
    for cell in cells:
        shown = {name: cell.metrics[name] for name in RECORDED}
        facts = asdict(cell) | {"metrics": shown, "differences": from_first(cell), "timing": {}}
        lines.append(json.dumps(facts) + "\n")
    path.write_text("".join(lines), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("paths", nargs="+", type=Path, metavar="FOLDER_OR_RECORD")
    parser.add_argument("--record", type=Path, metavar="FILE")
    parser.add_argument("--task", nargs="+", metavar="NAME")
    args = parser.parse_args()
    cells = read(args.paths)
    if args.record:
        record(cells, args.record)
    corrected = corrected_ps(cells)
    print(f"{len(corrected)} differences are corrected for.\n")
    if args.task:
        cells = [cell for cell in cells if cell.task in args.task]
    overview("Accuracy in percent", cells, lambda cell: signed(cell, corrected))
    for name in ("NLL at the best temperature", "tokens"):
        overview(name, cells, MEASURES[name])
    for model in dict.fromkeys(cell.model for cell in cells):
        of_model = {(cell.task, cell.name): cell for cell in cells if cell.model == model}
        tasks, names = (list(dict.fromkeys(parts)) for parts in zip(*of_model, strict=True))
        titles = {}
        for task in tasks:
            titles[task] = f"{task} ({of_model[task, FIRST].metrics['n']:,} questions)"
        texts = {key: accuracy(cell, corrected) for key, cell in of_model.items()}
        rows = [[name, *(texts.get((task, name), "-") for task in tasks)] for name in names]
        tell(f"{model}: accuracy", ["method", *titles.values()], rows)
        for task in tasks:
            rows = [
                [name, *(text(of_model[task, name]) for text in MEASURES.values())]
                for name in names
                if (task, name) in of_model
            ]
            tell(f"{model}, {titles[task]}", ["method", *MEASURES], rows)


if __name__ == "__main__":
    main()
