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
from minise.evaluation.experiments import EXPERIMENTS, NO_EXPERIMENT
from minise.evaluation.results import Results
from minise.evaluation.tables import Cell, cells_of
from minise.files import write_file

Panels = dict[str, list[Cell]]  # by their titles
LOOK = {"font.size": 9, "legend.frameon": False, "axes.grid": True, "grid.color": "#e4e4e4"}
STYLE = ["tableau-colorblind10", LOOK, {"text.parse_math": False}]  # names are text, no formulas


def draw(runs: Sequence[Results], folder: Path) -> list[Path]:
    """Write the pictures of one experiment's runs as PNG files. Their bytes depend on the results
    and on the version of matplotlib alone."""
    cells = [cell for cell in cells_of(runs) if "accuracy" in cell]
    paths = []
    for name in EXPERIMENTS.get(runs[0].what["experiment"], NO_EXPERIMENT).figures:
        form = FIGURES[name]
        for part, some in grouped(cells, *form.file).items():
            content = io.BytesIO()
            with matplotlib.style.context(STYLE):
                figure = sheet(grouped(some, *form.panel), form.paint, form.below, *form.beside)
                figure.savefig(content, format="png", dpi=130, metadata={"Software": None})
            path = folder / (f"{name}-{part.replace('/', '_')}".rstrip("-") + ".png")
            write_file(path, content.getvalue())
            paths.append(path)
    return paths


def grouped(cells: Sequence[Cell], *keys: str) -> Panels:
    """The cells of one model, task, ... under these as a title."""
    groups: Panels = {}
    for cell in cells:
        groups.setdefault(", ".join(str(cell[key]) for key in keys), []).append(cell)
    return groups


def sheet(panels: Panels, paint: Callable[..., None], below: str, *beside: str) -> Figure:
    """A figure of panels beside each other. `paint(cells, *axes)` draws one, which has axes for the
    texts of `beside`, one below the other."""
    figure = Figure((max(3.4 * len(panels), 5), 2.4 * len(beside) + 0.8), layout="constrained")
    every = figure.subplots(len(beside), len(panels), squeeze=False)
    for axes, (title, cells) in zip(every.T, panels.items(), strict=True):
        axes[0].set_title(shorten(title, 50), fontsize=9)
        axes[-1].set_xlabel(below)
        for ax, words in zip(axes, beside, strict=True):
            ax.set_ylabel(words)
        paint(cells, *axes)
    names = figure.axes[0].get_legend_handles_labels()
    figure.legend(*names, loc="outside upper center", ncols=3, fontsize=8)
    return figure


def lines(x: str, of: str, cells: list[Cell], ax: Any) -> None:
    """Accuracy, with its interval, against `x`: a line for each `of`."""
    values: list[Any] = list(dict.fromkeys(cell[x] for cell in cells))
    if x == "billions":
        values.sort()
    named = grouped(cells, of)
    for i, (name, each) in enumerate(named.items()):
        aside = 0.06 * (i - (len(named) - 1) / 2)  # no interval covers another
        at = [values.index(cell[x]) + aside for cell in each]
        value = np.array([100 * cell["accuracy"] for cell in each])
        reach = abs(100 * np.array([cell["accuracy_interval"] for cell in each]).T - value)
        ax.errorbar(at, value, reach, marker="o", label=name, color=f"C{i}")
    chance = {values.index(cell[x]): 100 * cell["chance"] for cell in cells}
    ax.plot(chance.keys(), chance.values(), ":_", color="black", label="chance (1/K)")
    ax.set_xlim(-0.5, len(values) - 0.5)
    ax.set_xticks(range(len(values)), [shorten(str(value), 20) for value in values])


def curves(of: str, cells: list[Cell], *axes: Any) -> None:
    """The share of predictions with f > tau, correct ones above and incorrect ones below. By K:
    of standard inference."""
    shown = [cell for cell in cells if of != "K" or cell["kind"] == "standard"]
    for i, cell in enumerate(shown):
        curve = cell["confidence_curve"]
        for ax, kind in zip(axes, ("correct", "incorrect"), strict=True):
            if curve[kind] is not None:
                share = 100 * np.array(curve[kind])
                ax.plot(curve["tau"], share, label=cell[of], color=f"C{i}")


def bins(cells: list[Cell], above: Any, below: Any) -> None:
    """Accuracy against mean confidence, and how many predictions each bin has."""
    above.plot([0, 1], [0, 100], ":", color="black", label="calibrated")
    below.set_xlim(above.get_xlim())
    for i, cell in enumerate(cells):
        f, of, color = cell["reliability"]["confidence"], cell["reliability"], f"C{i}"
        above.plot(f, 100 * np.array(of["accuracy"]), "o-", label=cell["method"], color=color)
        below.plot(f, of["count"], "o-", color=color)


ACCURACY = ["accuracy (%)"]
SHARES = ["correct: % f > τ", "incorrect: % f > τ"]


@dataclass(frozen=True)
class Form:
    """file, panel: the facts of cells that have a file, and a panel, of their own. paint: draws a
    panel. below, beside: the labels of its axes."""

    file: Sequence[str]
    panel: Sequence[str]
    paint: Callable[..., None]
    below: str
    beside: Sequence[str]


FIGURES = {
    "accuracy": Form([], ["model"], partial(lines, "task", "method"), "", ACCURACY),
    "choices": Form([], ["model", "dataset"], partial(lines, "K", "method"), "", ACCURACY),
    "scaling": Form(
        [], ["task"], partial(lines, "billions", "method"), "10^9 parameters", ACCURACY
    ),
    "sensitivity": Form([], ["model", "task"], partial(lines, "N", "m"), "N", ACCURACY),
    "confidence": Form(["task"], ["model"], partial(curves, "method"), "τ", SHARES),
    "confidence-choices": Form([], ["model", "dataset"], partial(curves, "K"), "τ", SHARES),
    "reliability": Form(["task"], ["model"], bins, "f", [*ACCURACY, "answers"]),
}
