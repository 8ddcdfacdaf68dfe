"""The figures of a report, drawn from results alone."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from minise.errors import InputError, one_line, printable, shorten
from minise.evaluation.results import Cell, Results
from minise.plugin import load_extra

Panel = tuple[str, list[Any]]  # a title, and the cells below it

_GREY, _BLUE, _RED = "#888888", "#2f6f9f", "#c23b22"
_METHODS = {"standard": _GREY, "self-ensemble": _RED, "cyclic": _BLUE, "cyclic-matched": "#17405f"}
_METHODS |= {"vector-scaling": "#c99a2e", "dirichlet": "#6b8e23"}
_METHODS |= {"without-mask": "#7b4fa3", "without-positions": "#d07fb0"}
_ENGINES = {"separate": _GREY, "dense": _BLUE, "tree": _RED}
_SHADES = ("#f2b8a0", "#e08163", _RED, "#6e1a0c", "#2b0a04")  # of K and m, from few to many
_CURVES = ("% of correct with f > τ", "% of incorrect with f > τ")


# Names are text, whatever a user's matplotlibrc says: "x$_{$" is no formula.
_AS_TEXT = {"text.parse_math": False, "text.usetex": False}


def draw(runs: Sequence[Results], folder: Path) -> list[Path]:
    """Write the figures of one experiment's runs as PNG files and return their paths. Raises
    InputError without matplotlib, and for whatever keeps a figure from being drawn or written."""
    paths: list[Path] = []
    with load_extra("matplotlib").rc_context(_AS_TEXT), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of letters that the font does not have
        try:
            for name, figure in make_figures(runs).items():
                paths.append(folder / f"{name.translate({ord('/'): '_', 92: '_'})}.png")
                figure.savefig(paths[-1], dpi=120)
        except InputError:
            raise
        except Exception as error:  # a picture must not end an evaluation without its numbers
            where = f"{folder}: a figure could not be drawn"
            raise InputError(
                f"{where} ({one_line(error)}); results and tables are whole"
            ) from error
    return paths


def make_figures(runs: Sequence[Results]) -> dict[str, Any]:
    """Matplotlib's figures of one experiment's runs, by the names of their files."""
    panels: list[Panel] = []
    for run in runs:
        for task in dict.fromkeys(cell.task for cell in run.cells):
            panels.append((f"{run.model}, {task}", [c for c in run.cells if c.task == task]))
    match runs[0].experiment:
        case "choices":
            panels = [(run.model, run.cells) for run in runs]
            figure = _figure(panels, _choices, ["accuracy (%)"], "choices K")
            panels = [(f"{run.model}, standard", run.cells) for run in runs]
            curves = _figure(panels, partial(_curves, by_choices=True), _CURVES, "τ")
            return {"accuracy-choices": figure, "confidence-choices": curves}
        case "sensitivity" as name:
            return {name: _figure(panels, _trials, ["accuracy (%)"], "trials N")}
        case "efficiency" as name:
            return {name: _figure(panels, _engines, ["seconds a question", "peak MiB"], "")}
        case "groupings" as name:
            found = [(run.model, *item) for run in runs for item in run.extra[name].items()]
            panels = [(f"{model}, {task}", study["cells"]) for model, task, study in found]
            return {name: _figure(panels, _groupings, ["variance of the scores"], "tokens (tree)")}
    tasks: dict[str, list[Panel]] = {}
    for panel in panels:
        tasks.setdefault(panel[1][0].task, []).append(panel)
    return {f"confidence-{task}": _figure(tasks[task], _curves, _CURVES, "τ") for task in tasks}


def _figure(
    panels: Sequence[Panel], paint: Callable[..., None], ylabels: Sequence[str], xlabel: str
) -> Any:
    """A column of axes for each panel, a row for each label; `paint` draws the cells of a panel on
    its axes."""
    rows, size = len(ylabels), (3.6 * len(panels) + 0.6, 3.0 * len(ylabels))
    figure = load_extra("matplotlib.figure").Figure(figsize=size, layout="constrained")
    axes = figure.subplots(rows, len(panels), squeeze=False, sharey="row")
    for ax, ylabel in zip(axes[:, 0], ylabels, strict=True):
        ax.set_ylabel(ylabel)
    for (title, cells), column in zip(panels, axes.T, strict=True):
        for ax in column:
            ax.spines[["top", "right"]].set_visible(False)
            ax.grid(alpha=0.25)
        column[0].set_title(printable(shorten(title, 80)))
        column[-1].set_xlabel(xlabel)
        paint(cells, *column)
    # The first panel may be empty: where no answer is right, or none is wrong.
    if labelled := [ax for ax in figure.axes if ax.get_legend_handles_labels()[0]]:
        labelled[0].legend(frameon=False, fontsize="small")
    return figure


def _curves(cells: Sequence[Cell], *axes: Any, by_choices: bool = False) -> None:
    """Share of samples with f > tau, correct ones above and incorrect ones below: a line for each
    method, or one for each number of choices under standard inference."""
    for i, cell in enumerate(c for c in cells if c.method == "standard" or not by_choices):
        label = f"K={cell.choices}" if by_choices else cell.name
        colour = _SHADES[i % len(_SHADES)] if by_choices else _METHODS.get(cell.method)
        curve = cell.metrics["confidence_curve"]
        for ax, kind in zip(axes, ("correct", "incorrect"), strict=True):
            ax.set(xlim=(0, 1), ylim=(0, 102))
            if curve[kind] is not None:
                ax.plot(curve["tau"], 100 * np.array(curve[kind]), color=colour, label=label)


def _choices(cells: Sequence[Cell], ax: Any) -> None:
    """Accuracy against K, a line for each method."""
    for name in dict.fromkeys(cell.name for cell in cells):
        line = [cell for cell in cells if cell.name == name]
        ks = [cell.choices for cell in line]
        values = 100 * np.array([cell.metrics["accuracy"] for cell in line])
        bounds = 100 * np.array([cell.metrics["accuracy_interval"] for cell in line]).T
        style = {"color": _METHODS.get(line[0].method), "marker": "o", "capsize": 3}
        ax.errorbar(ks, values, abs(bounds - values), label=name, **style)
        ax.set_xticks(ks)


def _trials(cells: Sequence[Cell], ax: Any) -> None:
    """Accuracy against N, a line for each m; the exact expectation dotted."""
    lines: dict[int, dict[int, float]] = {}  # m -> N (0: exact) -> accuracy
    for cell in cells:
        points = lines.setdefault(cell.settings["group_size"], {})
        exact = cell.settings.get("grouping") == "exact"
        points[0 if exact else cell.settings["trials"]] = 100 * cell.metrics["accuracy"]
    ax.set_xscale("log")
    for colour, (m, points) in zip(_SHADES, lines.items(), strict=False):
        if 0 in points:
            ax.axhline(points.pop(0), color=colour, ls=":", lw=1)
        ax.plot([*points], [*points.values()], "o-", color=colour, label=f"m={m}")
    trials = sorted({n for points in lines.values() for n in points})
    ax.set_xticks(trials, map(str, trials))
    ax.minorticks_off()


def _engines(cells: Sequence[Cell], above: Any, below: Any) -> None:
    """Seconds a question and peak memory of each engine."""
    names, colours = [c.name for c in cells], [_ENGINES[c.engine] for c in cells]
    above.bar(names, [c.timing["seconds_per_question"] or 0 for c in cells], color=colours)
    below.bar(names, [(c.timing["peak_bytes"] or 0) / 2**20 for c in cells], color=colours)


def _groupings(cells: Sequence[dict[str, Any]], ax: Any) -> None:
    """The variance of the scores against the tokens spent; beside each point its trials."""
    ax.set(xscale="log", yscale="log")
    beside = {"xytext": (0, 4), "textcoords": "offset points", "fontsize": 6}
    for grouping, colour in {"random": _GREY, "balanced": _RED}.items():
        line = [cell for cell in cells if cell["grouping"] == grouping]
        x, y = ([cell[what] for cell in line] for what in ("tokens", "variance"))
        ax.plot(x, y, "o-", color=colour, label=grouping)
        for cell in line:
            ax.annotate(cell["trials"], (cell["tokens"], cell["variance"]), **beside)
