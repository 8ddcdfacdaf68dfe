"""The figures of a report, from results alone: which an experiment has, and what they say."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from minise.errors import InputError, one_line, shorten
from minise.evaluation.one_question import lost_among_many
from minise.report import panels as paint
from minise.report.drawing import Look, looks, sheet, style
from minise.report.results import Cell, Results

_F = "f: the probability of the predicted choice. "
_CHANCE = "Chance: the mean of 1/K, where a question has K choices. "
_ACCURACY = f"95% bootstrap intervals over questions. {_CHANCE}"
_CONFIDENCE = (
    f"{_F}τ: any bound from 0 to 1. Better: high for correct predictions, low for incorrect ones. "
)
_RELIABILITY = (
    f"{_F}In each of the 15 bins of the ECE (expected calibration error): accuracy at the mean f, "
    "with a 95% Wilson interval in which a question counts once; below, the number of predictions. "
    f"{_CHANCE}"
)
_TRIALS = (
    "m: choices in a group. N: partitions of the choices into groups. Exact, and dotted: the "
    f"expectation over all groups. {_ACCURACY}"
)
_ENGINES = "Means over questions. Peak: memory above that of the weights. "
_GROUPINGS = (
    "Beside each point N: partitions of the choices into groups of m. Variance: mean squared "
    "distance of the scores from the expectation over all groups. Tokens: merged prompts. Below: "
    "how many random partitions have the variance of N balanced ones, with 95% bootstrap intervals "
    "over questions. "
)


def draw(runs: Sequence[Results], folder: Path) -> list[Path]:
    """Write the figures of one experiment's runs as PNG files and return their paths. Raises
    InputError without matplotlib, and for whatever keeps a figure from being drawn or written."""
    paths: list[Path] = []
    with style():
        try:
            for name, figure in make_figures(runs).items():
                paths.append(folder / f"{name.translate({ord('/'): '_', 92: '_'})}.png")
                figure.savefig(paths[-1])
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
    cells = [cell for run in runs for cell in run.cells]
    if not cells:  # no question has an answer
        return {}
    experiment, caption = runs[0].experiment, _ACCURACY + _settings(cells)
    names = list(dict.fromkeys(cell.name for cell in cells))
    known = looks(["standard", "self-ensemble", *names])  # a method looks the same everywhere
    bars = paint.bars_height(names)
    tasks = {task: _of(task, cells) for task in dict.fromkeys(cell.task for cell in cells)}
    panels = {
        task: [(f"{run.model}, {task}", own) for run in runs if (own := _of(task, run.cells))]
        for task in tasks
    }
    every = [panel for of_task in panels.values() for panel in of_task]
    if experiment == "sensitivity":  # all its variants are one method
        rows = {"accuracy (%)": ("trials N", 2.7)}
        return {experiment: sheet(every, partial(paint.trials, cells), rows, _TRIALS, sharey=True)}
    if experiment == "efficiency":  # the engines answer alike
        rows = {"": ("seconds a question", bars), " ": ("peak MiB", bars)}
        told = _ENGINES + _settings(cells)
        return {experiment: sheet(every, partial(paint.costs, names), rows, told)}
    drawn = {}
    if experiment == "groupings":
        drawn["groupings"] = _groupings(runs)
    elif experiment == "choices":
        drawn |= _choices(runs, known, caption)
    else:
        rows, accuracies = {"": ("accuracy (%)", bars)}, partial(paint.accuracies, names, known)
        drawn["accuracy"] = sheet(every, accuracies, rows, caption, sharey=True)
        if experiment == "main" and len(every) > 2:
            one, rows = [("accuracy (%)", cells)], {"": ("", 5.0)}
            drawn["radar"] = sheet(one, partial(paint.radar, known), rows, _settings(cells))
        if experiment == "scale" and len({cell.parameters for cell in cells} - {None}) > 1:
            rows = {"accuracy (%)": ("parameters (billions)", 2.7)}
            scaling = partial(paint.scaling, known)
            drawn["scaling"] = sheet([*tasks.items()], scaling, rows, caption, sharey=True)
        curves = partial(paint.curves, lambda cell: (paint.spaced(cell.name), known[cell.name]))
        for task, own in tasks.items():
            told = _CONFIDENCE + _settings(own)
            drawn[f"confidence-{task}"] = sheet(panels[task], curves, paint.CURVES, told)
    for task, own in tasks.items():
        # A run that was written before the bins were kept has none.
        if kept := [cell for cell in own if cell.metrics["reliability"]]:
            titled = [(f"{c.label}, {paint.spaced(c.name)}\n{_ece(c)}", c) for c in kept]
            told, bins = _RELIABILITY + _settings(kept), partial(paint.bins, known)
            drawn[f"reliability-{task}"] = sheet(titled, bins, paint.BINS, told)
    return drawn


def _of(task: str, cells: Sequence[Cell]) -> list[Cell]:
    return [cell for cell in cells if cell.task == task]


def _groupings(runs: Sequence[Results]) -> Any:
    studies = [
        (f"{run.model}, {task}, m={study['group_size']}", study)
        for run in runs
        for task, study in run.extra["groupings"].items()
    ]
    rows = {
        "variance of the scores": ("tokens a question", 2.7),
        "worth random trials": ("trials N", 2.2),
    }
    return sheet(studies, paint.study, rows, _GROUPINGS)


def _choices(runs: Sequence[Results], known: dict[str, Look], accuracy: str) -> dict[str, Any]:
    models: list[tuple[str, list[Cell]]] = []
    for run in runs:
        # A task that was cut to several numbers of choices is one line.
        cut = {cell.task: cell.task.removesuffix(f"-k{cell.choices}") for cell in run.cells}
        for whole in dict.fromkeys(cut.values()):
            own = [cell for cell in run.cells if cut[cell.task] == whole]
            models.append(
                (f"{run.model}, {whole}" if len(set(cut.values())) > 1 else run.model, own)
            )
    rows, points = {"accuracy (%)": ("choices K", 2.7)}, partial(paint.choices, known)
    drawn = {"accuracy-choices": sheet(models, points, rows, accuracy, sharey=True)}
    ks = sorted({cell.choices or 0 for run in runs for cell in run.cells})
    shades = looks(ks, ordered=True)
    curves = partial(paint.curves, lambda cell: (f"K={cell.choices}", shades[cell.choices or 0]))
    standard = [
        (f"{model}, standard", [cell for cell in of if cell.method == "standard"])
        for model, of in models
    ]
    told = f"{_CONFIDENCE}K: choices of a question."
    drawn["confidence-choices"] = sheet(standard, curves, paint.CURVES, told)
    # Of the first model that has one: a question that is lost among many choices.
    for run in runs:
        asked = {c.choices or 0: run.extra["asked"].get(c.task, {}) for c in run.cells}
        if pair := lost_among_many(asked, "standard"):
            panels = [(f"K={K}", one) for K, one in pair]
            rows = {"": ("probability (%)", 0.4 + 0.3 * len(pair[1][1]["choices"]))}
            told = f"{run.model}. ✓: the right choice. {shorten(pair[0][1]['question'], 300)}"
            drawn["one-question"] = sheet(panels, partial(paint.one_question, known), rows, told)
            break
    return drawn


def _ece(cell: Cell) -> str:
    low, high = cell.metrics["ece_width_interval"]
    return f"ECE {cell.metrics['ece_width']:.3f} [{low:.3f}, {high:.3f}]"


def _settings(cells: Iterable[Cell]) -> str:
    """m, N, the grouping and another preset than the paper's, by task or run where these differ."""
    symbols = {"group_size": "m", "trials": "N", "grouping": "grouping", "preset": "preset"}
    told: dict[tuple[str, str, str], str] = {}
    for cell in cells:
        hidden = {"trials"} if cell.used.get("grouping") == "exact" else set()
        shown = [k for k, v in cell.used.items() if v not in (None, "paper") and k not in hidden]
        if text := ", ".join(f"{symbols[k]}={cell.used[k]}" for k in shown if k in symbols):
            told[paint.spaced(cell.name), cell.task, cell.label] = text
    found: dict[str, list[str]] = {}
    for (name, task, label), text in told.items():
        others = [key for key, other in told.items() if key[0] == name and other != text]
        which = [task] * any(run == label for _, _, run in others)
        which += [label] * any(at == task for _, at, _ in others)
        found.setdefault(text, []).append(f"{name} of {', '.join(which)}" if which else name)
    each = "; ".join(f"{', '.join(dict.fromkeys(of))}: {text}" for text, of in found.items())
    if not each:
        return ""
    return f"m: choices in a group. N: partitions into groups. {shorten(each, 400)}."
