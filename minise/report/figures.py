"""The figures of a report, from results alone. An experiment names its figures; each is drawn by a
source, which gives matplotlib's figures by the names of their files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from minise.errors import InputError, one_line, shorten
from minise.evaluation.experiments import find_experiment
from minise.files import write_file
from minise.report import panels as paint
from minise.report.drawing import Look, looks, picture, sheet, style
from minise.report.results import Cell, Results

_F = "f: the probability of the predicted choice. "
_CHANCE = "Chance: the mean of 1/K, where a question has K choices. "
_ACCURACY = f"95% bootstrap intervals, those of report.md. {_CHANCE}"
_CONFIDENCE = (
    f"{_F}τ: any bound from 0 to 1. Better: high for correct predictions, low for incorrect ones. "
)
_RELIABILITY = (
    f"{_F}Above: accuracy at the mean f, with a 95% Wilson interval in which a question counts "
    "once. A point is one of the 15 bins of the ECE (expected calibration error), or several "
    f"neighbours, merged until they have {paint.ENOUGH_QUESTIONS} questions; the ECE is of the 15 "
    f"bins. Below: the number of predictions in each of the 15. {_CHANCE}"
)
_TRIALS = (
    "m: choices in a group. N: partitions of the choices into groups. Exact, and dotted: the "
    f"expectation over all groups. {_ACCURACY}"
)
_ENGINES = "Means over questions. Peak: memory above that of the weights. "


def draw(runs: Sequence[Results], folder: Path) -> list[Path]:
    """Write the figures of one experiment's runs as PNG files and return their paths. Raises
    InputError without matplotlib, and where a figure cannot be drawn or written."""
    paths: list[Path] = []
    with style():
        try:
            for name, figure in make_figures(runs).items():
                paths.append(folder / f"{name.translate({ord('/'): '_', 92: '_'})}.png")
                write_file(paths[-1], picture(figure, "png"))
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
    content = Content(runs)
    figures: dict[str, Any] = {}
    if content.cells:  # else no question has an answer
        for name in find_experiment(runs[0].experiment).figures:
            figures |= FIGURES[name](content)
    return figures


@dataclass(frozen=True)
class Content:
    """The runs of one experiment, as the figures take them."""

    runs: Sequence[Results]

    @cached_property
    def cells(self) -> list[Cell]:
        return [cell for run in self.runs for cell in run.cells]

    @cached_property
    def names(self) -> list[str]:
        """Of the methods."""
        return list(dict.fromkeys(cell.name for cell in self.cells))

    @cached_property
    def looks(self) -> dict[str, Look]:
        """How each method is drawn: the two of the paper alike in all reports."""
        return looks(["standard", "self-ensemble", *self.names])

    @cached_property
    def tasks(self) -> dict[str, list[Cell]]:
        return {
            task: [cell for cell in self.cells if cell.task == task]
            for task in dict.fromkeys(cell.task for cell in self.cells)
        }

    def panels(self, task: str) -> list[tuple[str, list[Cell]]]:
        """A panel for each run that has the task: its title and its cells."""
        panels = []
        for run in self.runs:
            if cells := [cell for cell in run.cells if cell.task == task]:
                panels.append((f"{run.model}, {task}", cells))
        return panels

    @cached_property
    def all_panels(self) -> list[tuple[str, list[Cell]]]:
        return [panel for task in self.tasks for panel in self.panels(task)]

    @cached_property
    def lines(self) -> list[tuple[str, list[Cell]]]:
        """The cells of each model, and the title of their panel. A task that was cut to several
        numbers of choices is one line."""
        lines = []
        for run in self.runs:
            uncut = {cell.task: cell.task.removesuffix(f"-k{cell.choices}") for cell in run.cells}
            names = list(dict.fromkeys(uncut.values()))
            for name in names:
                cells = [cell for cell in run.cells if uncut[cell.task] == name]
                lines.append((f"{run.model}, {name}" if len(names) > 1 else run.model, cells))
        return lines


def _accuracy(content: Content) -> dict[str, Any]:
    rows = {"": ("accuracy (%)", paint.bars_height(content.names))}
    bars = partial(paint.accuracies, content.names, content.looks)
    caption = _ACCURACY + _settings(content.cells)
    return {"accuracy": sheet(content.all_panels, bars, rows, caption, sharey=True)}


def _radar(content: Content) -> dict[str, Any]:
    if len(content.all_panels) < 3:
        return {}
    panels, rows = [("accuracy (%)", content.cells)], {"": ("", 5.0)}
    caption = _settings(content.cells)
    return {"radar": sheet(panels, partial(paint.radar, content.looks), rows, caption)}


def _scaling(content: Content) -> dict[str, Any]:
    if len({cell.parameters for cell in content.cells} - {None}) < 2:
        return {}
    rows = {"accuracy (%)": ("parameters (billions)", 2.7)}
    points = partial(paint.scaling, content.looks)
    caption = _ACCURACY + _settings(content.cells)
    return {"scaling": sheet([*content.tasks.items()], points, rows, caption, sharey=True)}


def _confidence(content: Content) -> dict[str, Any]:
    curves = partial(paint.curves, lambda c: (paint.spaced(c.name), content.looks[c.name]))
    figures = {}
    for task, cells in content.tasks.items():
        caption = _CONFIDENCE + _settings(cells)
        figures[f"confidence-{task}"] = sheet(content.panels(task), curves, paint.CURVES, caption)
    return figures


def _reliability(content: Content) -> dict[str, Any]:
    bins = partial(paint.bins, content.looks)
    figures = {}
    for task, cells in content.tasks.items():
        panels = [(f"{c.label}, {paint.spaced(c.name)}\n{_ece(c)}", c) for c in cells]
        caption = _RELIABILITY + _settings(cells)
        figures[f"reliability-{task}"] = sheet(panels, bins, paint.BINS, caption)
    return figures


def _sensitivity(content: Content) -> dict[str, Any]:
    rows = {"accuracy (%)": ("trials N", 2.7)}
    points = partial(paint.trials, content.cells)
    return {"sensitivity": sheet(content.all_panels, points, rows, _TRIALS, sharey=True)}


def _efficiency(content: Content) -> dict[str, Any]:
    height = paint.bars_height(content.names)
    rows = {"": ("seconds a question", height), " ": ("peak MiB", height)}
    caption = _ENGINES + _settings(content.cells)
    bars = partial(paint.costs, content.names)
    return {"efficiency": sheet(content.all_panels, bars, rows, caption)}


def _accuracy_choices(content: Content) -> dict[str, Any]:
    rows, points = {"accuracy (%)": ("choices K", 2.7)}, partial(paint.choices, content.looks)
    caption = _ACCURACY + _settings(content.cells)
    return {"accuracy-choices": sheet(content.lines, points, rows, caption, sharey=True)}


def _confidence_choices(content: Content) -> dict[str, Any]:
    shades = looks(sorted({cell.choices or 0 for cell in content.cells}), ordered=True)
    curves = partial(paint.curves, lambda c: (f"K={c.choices}", shades[c.choices or 0]))
    standard = [
        (f"{title}, standard", [cell for cell in cells if cell.method == "standard"])
        for title, cells in content.lines
    ]
    caption = f"{_CONFIDENCE}K: choices of a question."
    return {"confidence-choices": sheet(standard, curves, paint.CURVES, caption)}


def _one_question(content: Content) -> dict[str, Any]:
    """Of the first model that has one: a question that is lost among many choices."""
    for run in content.runs:
        questions = {cell.choices or 0: run.extra["asked"][cell.task] for cell in run.cells}
        if pair := lost_among_many(questions, "standard"):
            (few, first), (many, second) = pair
            panels = [(f"K={few}", first), (f"K={many}", second)]
            rows = {"": ("probability (%)", 0.4 + 0.3 * len(second["choices"]))}
            caption = f"{run.model}. ✓: the right choice. {shorten(first['question'], 300)}"
            bars = partial(paint.one_question, content.looks)
            return {"one-question": sheet(panels, bars, rows, caption)}
    return {}


FIGURES: dict[str, Callable[[Content], dict[str, Any]]] = {
    "accuracy": _accuracy,
    "radar": _radar,
    "scaling": _scaling,
    "confidence": _confidence,
    "reliability": _reliability,
    "sensitivity": _sensitivity,
    "efficiency": _efficiency,
    "accuracy-choices": _accuracy_choices,
    "confidence-choices": _confidence_choices,
    "one-question": _one_question,
}


def lost_among_many(
    questions: dict[int, dict[str, Any]], method: str
) -> list[tuple[int, dict[str, Any]]]:
    """The first question that the method answers rightly at K = 4 (or the smallest K) and wrongly
    at the largest K, as (K, question) for both; empty if there is none. `questions`: those of
    `extras.single_questions`, by K and id."""
    few, most = 4 if 4 in questions else min(questions), max(questions)
    for id in questions[few]:
        if id in questions[most]:
            pair = [(K, questions[K][id]) for K in (few, most)]
            if [_is_right(one, method) for _, one in pair] == [True, False]:
                return pair
    return []


def _is_right(question: dict[str, Any], method: str) -> bool | None:
    """Whether a method answers a question rightly; None where it has no answer."""
    p = question["methods"].get(method)
    return None if p is None else question["answer"] == max(range(len(p)), key=p.__getitem__)


def _ece(cell: Cell) -> str:
    low, high = cell.metrics["ece_width_interval"]
    return f"ECE {cell.metrics['ece_width']:.3f} [{low:.3f}, {high:.3f}]"


def _settings(cells: Iterable[Cell]) -> str:
    """m, N, the grouping and another preset than the paper's, by task or run where these differ."""
    symbols = {"group_size": "m", "trials": "N", "grouping": "grouping", "preset": "preset"}
    texts: dict[tuple[str, str, str], str] = {}  # by name, task and label
    for cell in cells:
        hidden = {"trials"} if cell.used.get("grouping") == "exact" else set()
        shown = [k for k, v in cell.used.items() if v not in (None, "paper") and k not in hidden]
        if text := ", ".join(f"{symbols[k]}={cell.used[k]}" for k in shown if k in symbols):
            texts[paint.spaced(cell.name), cell.task, cell.label] = text
    names_by_text: dict[str, list[str]] = {}
    for (name, task, label), text in texts.items():
        others = [key for key, other in texts.items() if key[0] == name and other != text]
        where = []
        if any(run == label for _, _, run in others):
            where.append(task)
        if any(other_task == task for _, other_task, _ in others):
            where.append(label)
        names = names_by_text.setdefault(text, [])
        names.append(f"{name} of {', '.join(where)}" if where else name)
    parts = [f"{', '.join(dict.fromkeys(names))}: {text}" for text, names in names_by_text.items()]
    if not parts:
        return ""
    each = "; ".join(parts)
    return f"m: choices in a group. N: partitions into groups. {shorten(each, 400)}."
