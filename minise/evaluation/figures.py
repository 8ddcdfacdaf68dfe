"""The figures of a report, drawn from results alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from minise.errors import InputError
from minise.evaluation.tables import Results, run_name

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_COLOURS = {
    "standard": "#888888",
    "self-ensemble": "#c23b22",
    "cyclic": "#2f6f9f",
    "cyclic-matched": "#17405f",
    "vector-scaling": "#c99a2e",
    "dirichlet": "#6b8e23",
    "without-mask": "#7b4fa3",
    "without-positions": "#d07fb0",
}


def draw(runs: Sequence[Results], folder: Path) -> list[Path]:
    """Write the experiment's PNG figures and return their paths."""
    try:
        import matplotlib
    except ImportError:
        raise InputError("figures need matplotlib: pip install 'minise[eval]'") from None
    matplotlib.use("Agg")
    paths = []
    for name, figure in _figures(runs[0]["config"]["preset"])(runs).items():
        path = folder / f"{name}.png"
        figure.savefig(path, dpi=120)
        paths.append(path)
    return paths


def _figures(preset: str | None) -> Callable[[Sequence[Results]], dict[str, Figure]]:
    special = {
        "choices": _choices,
        "sensitivity": _sensitivity,
        "efficiency": _efficiency,
        "precision": _precision,
    }
    return special.get(str(preset), _methods)


def _efficiency(runs: Sequence[Results]) -> dict[str, Figure]:
    """Seconds a question, and peak memory where the system says it, for each way of running."""
    panels = [(run, task) for run in runs for task in run["timing"]]
    figure, rows = _new(len(panels), 2)
    for column, (run, task) in enumerate(panels):
        ways = list(run["timing"][task])
        cells = run["timing"][task].values()
        seconds = [cell["seconds_per_question"] for cell in cells]
        memory = [(cell["peak_bytes"] or 0) / 2**20 for cell in cells]
        for ax, values, label in zip(
            rows[:, column], (seconds, memory), ("seconds a question", "peak MiB"), strict=True
        ):
            ax.bar(ways, values, color=["#888888", "#2f6f9f", "#c23b22"][: len(ways)])
            ax.set_ylabel(label if column == 0 else "")
        rows[0, column].set_title(f"{run_name(run)}, {task}")
    return {"efficiency": figure}


def _new(columns: int, rows: int = 1) -> tuple[Figure, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(3.6 * columns + 0.6, 3.0 * rows), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False, sharey="row")
    for ax in axes.flat:
        ax.spines[["top", "right"]].set_visible(False)
        ax.grid(alpha=0.25)
    return figure, axes


def _choices(runs: Sequence[Results]) -> dict[str, Figure]:
    """Accuracy against K, and standard inference's confidence curves for every K."""
    accuracy, (axes,) = _new(len(runs))
    for ax, run in zip(axes, runs, strict=True):
        tasks = list(run["results"])
        ks = [int(task.rsplit("-k", 1)[1]) for task in tasks]
        for method in run["results"][tasks[0]]:
            cells = [run["results"][task][method] for task in tasks]
            values = [100 * cell["accuracy"] for cell in cells]
            errors = [
                [100 * abs(cell["accuracy"] - cell["accuracy_interval"][side]) for cell in cells]
                for side in (0, 1)
            ]
            colour = _COLOURS.get(method)
            ax.errorbar(ks, values, errors, color=colour, marker="o", capsize=3, label=method)
        ax.set(title=run_name(run), xlabel="choices K", xticks=ks)
    axes[0].set_ylabel("accuracy (%)")
    axes[0].legend(frameon=False)

    curves, rows = _new(len(runs), 2)
    shades = ["#f2b8a0", "#e08163", "#c23b22", "#6e1a0c", "#2b0a04"]
    for column, run in enumerate(runs):
        for shade, (task, cells) in zip(shades * 3, run["results"].items(), strict=False):
            _curve(rows[:, column], cells["standard"], shade, f"K={task.rsplit('-k', 1)[1]}")
        _label_curves(rows[:, column], f"{run_name(run)}, standard")
    _legend(rows)
    return {"accuracy-choices": accuracy, "confidence-choices": curves}


def _sensitivity(runs: Sequence[Results]) -> dict[str, Figure]:
    """Accuracy against N, a line for each m; the exact expectation dotted."""
    panels = [(run, task) for run in runs for task in run["results"]]
    figure, (axes,) = _new(len(panels))
    shades = ["#f2b8a0", "#e08163", "#c23b22", "#6e1a0c"]
    for ax, (run, task) in zip(axes, panels, strict=True):
        cells = {tuple(name.split("-")): cell for name, cell in run["results"][task].items()}
        for shade, m in zip(shades, dict.fromkeys(m for m, _ in cells), strict=False):
            ns = [n for size, n in cells if size == m and n != "exact"]
            values = [100 * cells[m, n]["accuracy"] for n in ns]
            ax.plot([int(n[1:]) for n in ns], values, "o-", color=shade, label=f"m={m[1:]}")
            if (m, "exact") in cells:
                ax.axhline(100 * cells[m, "exact"]["accuracy"], color=shade, ls=":", lw=1)
        ax.set(title=f"{run_name(run)}, {task}", xlabel="trials N", xscale="log")
        counts = sorted({int(n[1:]) for _, n in cells if n != "exact"})
        ax.set_xticks(counts, [str(count) for count in counts])
        ax.minorticks_off()
    axes[0].set_ylabel("accuracy (%)")
    axes[0].legend(frameon=False)
    return {"sensitivity": figure}


def _precision(runs: Sequence[Results]) -> dict[str, Figure]:
    """The scores' variance against the tokens spent, for both groupings."""
    panels = [(run, task) for run in runs for task in run["precision"]]
    figure, (axes,) = _new(len(panels))
    for ax, (run, task) in zip(axes, panels, strict=True):
        cells = run["precision"][task]["cells"]
        for grouping, colour in (("random", "#888888"), ("balanced", "#c23b22")):
            ns = [name for name in cells if name.startswith(f"{grouping}-")]
            tokens = [cells[name]["tokens"] for name in ns]
            ax.plot(tokens, [cells[n]["variance"] for n in ns], "o-", color=colour, label=grouping)
            for name, x in zip(ns, tokens, strict=True):
                y = cells[name]["variance"]
                ax.annotate(
                    name.split("-")[1], (x, y), (0, 4), textcoords="offset points", fontsize=6
                )
        ax.set(xscale="log", yscale="log", xlabel="tokens (tree)", title=f"{run_name(run)}, {task}")
    axes[0].set_ylabel("variance of the scores")
    axes[0].legend(frameon=False)
    return {"precision": figure}


def _methods(runs: Sequence[Results]) -> dict[str, Figure]:
    """Confidence curves of the methods, correct above and incorrect below; a figure a task."""
    figures = {}
    for task in dict.fromkeys(task for run in runs for task in run["results"]):
        there = [run for run in runs if task in run["results"]]
        figure, rows = _new(len(there), 2)
        for column, run in enumerate(there):
            for method, cell in run["results"][task].items():
                _curve(rows[:, column], cell, _COLOURS.get(method), method)
            _label_curves(rows[:, column], f"{run_name(run)}, {task}")
        _legend(rows)
        figures[f"confidence-{task}"] = figure
    return figures


def _curve(axes: Any, cell: Results, colour: str | None, label: str) -> None:
    curve = cell["confidence_curve"]
    for ax, kind in zip(axes, ("correct", "incorrect"), strict=True):
        if curve[kind] is not None:
            ax.plot(curve["tau"], [100 * y for y in curve[kind]], color=colour, label=label)


def _legend(axes: Any) -> None:
    """In the first panel that has lines: where nothing is right, or wrong, there are none."""
    for ax in axes.T.flat:
        if ax.lines:
            ax.legend(frameon=False, fontsize="small")
            return


def _label_curves(axes: Any, title: str) -> None:
    axes[0].set(title=title, ylabel="% of correct with f > τ", xlim=(0, 1), ylim=(0, 102))
    axes[1].set(xlabel="τ", ylabel="% of incorrect with f > τ", xlim=(0, 1), ylim=(0, 102))
