"""Draw the pictures of docs/ again: the idea from the built-in question, the others from the tables
and numbers that are recorded beside them.

    python -m tools.draw_docs
    python -m tools.draw_docs --curves miniature/main runs/llama-main runs/qwen2-main

The second command first records the confidence curves of these runs beside the tables of docs/.

docs/pictures.json keeps what each picture shows. A test makes the figures again and compares, so no
picture is older than its table or than the code that draws it. Those of the README are also drawn
for a dark page.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from minise.files import json_text, write_file
from minise.report.drawing import picture, style
from minise.report.figures import FIGURES, Content
from minise.report.results import Cell, Results, read_results
from tools.draw_idea import idea

DOCS = Path(__file__).parents[1] / "docs"
RECORD = DOCS / "pictures.json"
MINIATURE = DOCS / "miniature"
CHOICES = {f"miniature-k{K}": K for K in (2, 4, 6, 8)}
ROTATIONS = "cyclic: mean over rotations (K=8 alone)"
README_FIGURE = "miniature/choices/accuracy-choices.png"
Table = list[dict[str, str]]  # its rows, by the heads of the columns
Numbers = tuple[float, tuple[float, float]]  # a value and its interval


def accuracy_choices() -> Any:
    """The accuracy at each number of choices, and at the largest that of all rotations."""
    cells = []
    ((_, table),) = tables(MINIATURE / "choices" / "report.md", "Accuracy")
    for row in table:
        for task, K in CHOICES.items():
            settings = {"group_size": 4, "trials": 20} if row["method"] == "self-ensemble" else {}
            cells.append(cell(row["model"], task, K, row["method"], settings, row[task]))
    ((_, table),) = tables(MINIATURE / "main" / "report.md", "Accuracy")
    for row in table:
        if row["method"] == "cyclic":
            task = "miniature-k8"
            cells.append(cell(row["model"], task, 8, ROTATIONS, {}, row["miniature"]))
    return FIGURES["accuracy-choices"](content(cells))["accuracy-choices"]


def sensitivity() -> Any:
    cells = []
    for title, table in tables(MINIATURE / "sensitivity" / "report.md", "tiny-"):
        for row in table:
            trials = row.pop("trials").removeprefix("N=")
            for m, text in row.items():
                settings: dict[str, Any] = {"group_size": int(m.removeprefix("m="))}
                settings |= {"grouping": "exact"} if trials == "exact" else {"trials": int(trials)}
                if text != "-":
                    name, model = f"{m}, {trials}", title.partition(",")[0]
                    cells.append(cell(model, "miniature", 8, name, settings, text))
    return FIGURES["sensitivity"](content(cells))["sensitivity"]


def confidence(folder: str, figure: str) -> Any:
    """The confidence curves of a folder's runs, from its curves.json."""
    cells = []
    for model, tasks in json.loads((DOCS / folder / "curves.json").read_text("utf-8")).items():
        for task, methods in tasks.items():
            for name, one in methods.items():
                K, settings = one["choices"], one["settings"]
                drawn = cell(model, task, K, name, settings, "0 [0, 0]")
                metrics = {**drawn.metrics, "confidence_curve": one["curve"]}
                cells.append(replace(drawn, metrics=metrics, method=one["method"]))
    return FIGURES["confidence" if figure.endswith("miniature") else figure](content(cells))[figure]


def record_curves(folder: str, runs: Sequence[Path]) -> None:
    """Write what `confidence` draws: of each model, task and method its curves, to four digits."""
    models: dict[str, Any] = {}
    for run in map(read_results, runs):
        for one in run.cells:
            if one.name in _WITHOUT_CURVES:
                continue
            curves = one.metrics["confidence_curve"]
            curve = {k: v and [round(x, 4) for x in v] for k, v in curves.items()}
            facts = {"method": one.method, "choices": one.choices, "settings": one.used}
            tasks = models.setdefault(run.model, {}).setdefault(one.task, {})
            tasks[one.name] = {**facts, "curve": curve}
    write_file(DOCS / folder / "curves.json", json_text(models) + "\n")


_WITHOUT_CURVES = ("cloze", "presence", "vector-scaling")  # too many lines to tell apart
PICTURES: dict[str, Callable[[], Any]] = {
    "idea.png": idea,
    README_FIGURE: accuracy_choices,
    "miniature/sensitivity/sensitivity.png": sensitivity,
    "miniature/choices/confidence-choices.png": partial(
        confidence, "miniature/choices", "confidence-choices"
    ),
    "miniature/main/confidence-miniature.png": partial(
        confidence, "miniature/main", "confidence-miniature"
    ),
}

# The README shows these on a dark page, too.
DARK = {name.replace(".png", "-dark.png"): name for name in ("idea.png", README_FIGURE)}


def tables(report: Path, title: str) -> Iterator[tuple[str, Table]]:
    """The tables of a report whose titles begin so, each with its whole title."""
    for part in re.finditer(r"^(.+)\n\n((?:\|.*\n)+)", report.read_text("utf-8"), re.MULTILINE):
        if part[1].startswith(title):
            heads, _, *rows = (
                [text.strip() for text in line.strip("|").split("|")]
                for line in part[2].splitlines()
            )
            yield part[1], [dict(zip(heads, row, strict=True)) for row in rows]


def read(text: str) -> Numbers:
    """A value and its interval, as "52.7 [51.4, 54.1]"."""
    value, low, high = (float(each) for each in re.findall(r"[\d.]+", text))
    return value, (low, high)


def cell(model: str, task: str, K: int, name: str, settings: dict[str, Any], accuracy: str) -> Cell:
    """A cell with what the figures of accuracy need of it."""
    value, interval = read(accuracy)
    metrics = {
        "accuracy": value / 100,
        "accuracy_interval": [bound / 100 for bound in interval],
        "chance": 1 / K,
    }
    return Cell(
        model=model,
        experiment=None,
        task=task,
        name=name,
        dataset="miniature",
        choices=K,
        method=name,
        settings=settings,
        engine="tree",
        metrics=metrics,
        timing={},
        differences=[],
        comparable=False,
        parameters=None,
    )


def content(cells: list[Cell]) -> Content:
    """The cells as runs, one for each model."""
    runs = []
    for model in dict.fromkeys(one.model for one in cells):
        of_model = [one for one in cells if one.model == model]
        runs.append(Results(model, None, {}, of_model, {}, {}))
    return Content(runs)


def make(name: str) -> tuple[Any, bytes]:
    """A picture by its name: matplotlib's figure, and its file."""
    with style(dark=name in DARK):
        figure = PICTURES[DARK.get(name, name)]()
        return figure, picture(figure, "png")


def shown(figure: Any) -> str:
    """A hash of what a figure shows: its size, texts, lines, intervals and images, with colours."""
    parts: list[Any] = [figure.get_size_inches(), figure.get_supxlabel(), figure.get_facecolor()]
    parts += [text.get_text() for legend in figure.legends for text in legend.get_texts()]
    for ax in figure.axes:
        parts += [ax.get_title(), ax.get_xlabel(), ax.get_ylabel()]
        parts += [(text.get_text(), text.xy) for text in ax.texts]
        for line in ax.lines:
            look = (line.get_color(), line.get_linestyle(), line.get_marker())
            parts += [look, line.get_xydata()]
        parts += [path.vertices for each in ax.collections for path in each.get_paths()]
        parts += [image.get_array() for image in ax.images]
    return hashlib.sha256(json.dumps(parts, default=_rounded).encode()).hexdigest()


def _rounded(value: Any) -> Any:
    """An array as a list. The last digits depend on the machine."""
    return [f"{number:.6g}" for number in np.asarray(value, dtype=float).flat]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--curves", metavar="FOLDER", help="of docs/: record curves of the runs")
    parser.add_argument("runs", nargs="*", type=Path, metavar="RUN")
    args = parser.parse_args()
    if args.curves:
        record_curves(args.curves, args.runs)
    record = {}
    for name in (*PICTURES, *DARK):
        figure, content = make(name)
        record[name] = shown(figure)
        write_file(DOCS / name, content)
        print(f"written: docs/{name}")
    write_file(RECORD, json_text(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
