"""The pictures of a report, drawn from the cells of tables.py."""

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib.style
import numpy as np
from matplotlib.figure import Figure

from minise.errors import shorten
from minise.lab.evaluation.experiments import EXPERIMENTS, NO_EXPERIMENT
from minise.lab.evaluation.results import Results
from minise.lab.evaluation.tables import Cell, cells_of
from minise.lab.files import write_file

Panels = dict[str, list[Cell]]  # by their titles
LOOK = {"font.size": 9, "legend.frameon": False, "axes.grid": True, "grid.color": "#e4e4e4"}
STYLE = [
    "tableau-colorblind10",
    LOOK,
    {"text.parse_math": False},  # names are text, no formulas
    {"svg.hashsalt": "minise"},  # else its ids are drawn anew each time
]
# A file's format, and what in it would change from run to run.
FORMATS = {"png": "Software", "svg": "Date", "pdf": "CreationDate"}


def draw(runs: Sequence[Results], folder: Path) -> list[Path]:
    """Write the pictures of one experiment's runs, each in every one of FORMATS; the paths of the
    PNG files. Their bytes depend on the results and on the version of matplotlib alone."""
    cells = [cell for cell in cells_of(runs) if cell["accuracy"] is not None]
    paths = []
    for name in EXPERIMENTS.get(runs[0].facts.experiment or "", NO_EXPERIMENT).figures:
        picture = FIGURES[name]
        for part, cells_of_file in grouped(cells, *picture.file).items():
            panels = grouped(cells_of_file, *picture.panel)
            title = f"{name}-{part.replace('/', '_')}".rstrip("-")
            with matplotlib.style.context(STYLE):
                figure = sheet(panels, picture.paint, picture.below, *picture.beside)
                for form, field in FORMATS.items():
                    content = io.BytesIO()
                    figure.savefig(content, format=form, dpi=130, metadata={field: None})
                    write_file(folder / f"{title}.{form}", content.getvalue())
            paths.append(folder / f"{title}.png")
    return paths


def grouped(cells: Sequence[Cell], *facts: str) -> Panels:
    """The cells with one model, task, ... under these as a title."""
    groups: Panels = {}
    for cell in cells:
        title = ", ".join(str(cell[fact]) for fact in facts)
        groups.setdefault(title, []).append(cell)
    return groups


def sheet(panels: Panels, paint: Callable[..., None], below: str, *beside: str) -> Figure:
    """A figure of panels beside each other. `paint(cells, *axes)` draws one, which has axes for the
    texts of `beside`, one below the other."""
    size = max(3.4 * len(panels), 5), 2.4 * len(beside) + 0.8
    figure = Figure(size, layout="constrained")
    rows_of_axes = figure.subplots(len(beside), len(panels), squeeze=False)
    for axes, (title, cells) in zip(rows_of_axes.T, panels.items(), strict=True):
        axes[0].set_title(shorten(title, 50), fontsize=9)
        axes[-1].set_xlabel(below)
        for ax, words in zip(axes, beside, strict=True):
            ax.set_ylabel(words)
        paint(cells, *axes)
    handles, names = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside upper center", ncols=3, fontsize=8)
    return figure


def lines(x: str, line: str, cells: list[Cell], ax: Any) -> None:
    """Accuracy, with its interval, against the fact `x`: a line for each value of the fact `line`,
    and the accuracy of guessing."""
    values: list[Any] = list(dict.fromkeys(cell[x] for cell in cells))
    by_line = grouped(cells, line)
    for i, (name, cells_of_line) in enumerate(by_line.items()):
        aside = 0.06 * (i - (len(by_line) - 1) / 2)  # no interval covers another
        at = [values.index(cell[x]) + aside for cell in cells_of_line]
        accuracy = np.array([100 * cell["accuracy"] for cell in cells_of_line])
        intervals = 100 * np.array([cell["accuracy_interval"] for cell in cells_of_line])
        reach = abs(intervals.T - accuracy)
        ax.errorbar(at, accuracy, reach, marker="o", label=name, color=f"C{i}")
    chance = {}
    for cell in cells:
        chance[values.index(cell[x])] = 100 * cell["chance"]
    ax.plot(chance.keys(), chance.values(), ":_", color="black", label="chance (1/K)")
    ax.set_xlim(-0.5, len(values) - 0.5)
    ax.set_xticks(range(len(values)), [shorten(str(value), 20) for value in values])


def curves(line: str, cells: list[Cell], of_correct: Any, of_incorrect: Any) -> None:
    """The share of predictions with f > tau, correct ones above and incorrect ones below: a line
    for each cell, which the fact `line` names. By K: of standard inference."""
    shown = [cell for cell in cells if line != "K" or cell["kind"] == "standard"]
    for i, cell in enumerate(shown):
        curve = cell["confidence_curve"]
        for ax, kind in ((of_correct, "correct"), (of_incorrect, "incorrect")):
            if curve[kind] is not None:
                percent = 100 * np.array(curve[kind])
                ax.plot(curve["tau"], percent, label=cell[line], color=f"C{i}")


ACCURACY = ["accuracy (%)"]
F = "probability of the predicted choice"
CURVES = ["% of the right answers above it", "% of the wrong answers above it"]


@dataclass(frozen=True)
class Picture:
    """file, panel: the facts of cells that have a file, and a panel, of their own. paint: draws a
    panel. below, beside: the labels of its axes."""

    panel: Sequence[str]
    paint: Callable[..., None]
    beside: Sequence[str]
    below: str = ""
    file: Sequence[str] = ()


FIGURES = {
    "accuracy": Picture(["model"], partial(lines, "task", "method"), ACCURACY),
    "choices": Picture(["model", "dataset"], partial(lines, "K", "method"), ACCURACY),
    "sensitivity": Picture(
        ["model", "task"], partial(lines, "N", "m"), ACCURACY, below="N, the number of trials"
    ),
    "confidence": Picture(["model"], partial(curves, "method"), CURVES, below=F, file=["task"]),
    "confidence-choices": Picture(["model", "dataset"], partial(curves, "K"), CURVES, below=F),
}
