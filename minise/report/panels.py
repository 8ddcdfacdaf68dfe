"""What stands in the panels of the figures: each function here draws cells on matplotlib's axes."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any

import numpy as np

from minise.errors import shorten
from minise.names import ENGINES
from minise.report.drawing import Look, looks, text_colour, wrapped
from minise.report.results import Cell

Looks = dict[str, Look]

# The rows of a panel: what each shows -> the label below it, and its height in inches
CURVES = {"% of correct with f > τ": ("", 2.2), "% of incorrect with f > τ": ("τ", 2.2)}
BINS = {"accuracy (%)": ("", 2.4), "predictions": ("confidence f", 0.8)}
_CHANCE: dict[str, Any] = {"ls": ":", "lw": 1.1, "label": "chance (1/K)"}
_Z = 1.959963984540054  # of a 95% interval
ENOUGH_QUESTIONS = 10  # with fewer, an interval can cover more than half of the axis


def curves(named: Callable[[Cell], tuple[str, Look]], cells: list[Cell], *axes: Any) -> None:
    """The share of predictions with f > tau, correct ones above and incorrect ones below."""
    for i, cell in enumerate(cells):
        label, look = named(cell)
        curve = cell.metrics["confidence_curve"]
        for ax, kind in zip(axes, ("correct", "incorrect"), strict=True):
            ax.set(xlim=(-0.01, 1.01), ylim=(-3, 103))
            if curve[kind] is not None:  # none is correct, or none is incorrect
                marks = {"markevery": (i % 10, 10), "label": label, **look.line}
                ax.plot(curve["tau"], 100 * np.array(curve[kind]), **marks)


def bins(methods: Looks, cell: Cell, above: Any, below: Any) -> None:
    """Accuracy against mean confidence in bins with enough questions, and how many predictions
    each bin of the ECE has."""
    reliability, look = cell.metrics["reliability"], methods[cell.name]
    f, share, n = merged(reliability, len(cell.metrics["seeds"]))
    above.plot([0, 1], [0, 100], color="#aaaaaa", lw=1, label="calibrated: accuracy = f")
    _draw_chance([cell], above.axhline)
    reach = 100 * abs(np.array(wilson(share, n)) - share)
    above.errorbar(f, 100 * share, reach, lw=0.7, color=look.colour, marker=look.marker)
    above.set(xlim=(-0.01, 1.01), ylim=(-3, 103))
    edges = np.array(reliability["edges"])
    below.bar(edges[:-1], reliability["count"], np.diff(edges), align="edge", **look.bar)
    below.set_xlim(-0.01, 1.01)
    below.yaxis.get_major_locator().set_params(integer=True)


def merged(reliability: dict[str, Any], seeds: int) -> Any:
    """The mean f, the accuracy and the number of questions of neighbouring bins, merged until each
    has enough questions. From the left; what is left over joins the last one. (3, bins)

    Under one seed a bin has as many questions as predictions. Under several, bins can share
    questions, and results do not say which. A question is in a bin at most once under each seed, so
    predictions / seeds is never more than the questions there are.
    """
    full = np.array(reliability["count"]) > 0
    count, questions, f, share = (
        np.array(reliability[key], dtype=float)[full]
        for key in ("count", "questions", "confidence", "accuracy")
    )

    def size(bin: list[int]) -> float:
        return float(max(questions[bin].max(), count[bin].sum() / seeds))

    bins: list[list[int]] = []
    for i in range(len(count)):
        if not bins or size(bins[-1]) >= ENOUGH_QUESTIONS:
            bins.append([])
        bins[-1].append(i)
    if len(bins) > 1 and size(bins[-1]) < ENOUGH_QUESTIONS:
        bins[-2:] = [bins[-2] + bins[-1]]
    rows = [
        (*(np.average(one[bin], weights=count[bin]) for one in (f, share)), size(bin))
        for bin in bins
    ]
    return np.array(rows).T


def wilson(share: Any, n: Any) -> tuple[Any, Any]:
    """The lower and the upper bound of the 95% interval of a share of n (Wilson 1927). Unlike
    scipy's `binomtest` it takes shares of no whole number: those of questions under several seeds.
    """
    middle = share + _Z**2 / (2 * n)
    reach = _Z * np.sqrt(share * (1 - share) / n + (_Z / n) ** 2 / 4)
    return (middle - reach) / (1 + _Z**2 / n), (middle + reach) / (1 + _Z**2 / n)


def choices(methods: Looks, cells: list[Cell], ax: Any) -> None:
    """Accuracy against K, a line for each method."""
    ks = sorted({cell.choices or 0 for cell in cells})
    names = list(dict.fromkeys(cell.name for cell in cells))
    gap = min(np.diff(ks), default=1)
    for i, name in enumerate(names):
        line = [(cell.choices or 0, cell) for cell in cells if cell.name == name]
        _line(line, ax, gap * _beside(i, len(names)), methods[name], spaced(name))
    chances = [_chance([cell for cell in cells if (cell.choices or 0) == k]) for k in ks]
    ax.plot(ks, chances, color=text_colour(), **_CHANCE)
    ax.set_xticks(ks)


def trials(every: Sequence[Cell], cells: list[Cell], ax: Any) -> None:
    """Accuracy against N, a line for each m. The exact expectation has a place at the right."""
    order = sorted({_trials(cell) for cell in every})
    sizes = looks(sorted({cell.settings["group_size"] for cell in every}), ordered=True)
    for i, (m, look) in enumerate(sizes.items()):
        of_size = [cell for cell in cells if cell.settings["group_size"] == m]
        line = [(order.index(_trials(cell)), cell) for cell in of_size]
        exact = [(at, cell) for at, cell in line if order[at] == np.inf]
        beside = _beside(i, len(sizes))
        _line([(at, cell) for at, cell in line if order[at] < np.inf], ax, beside, look, f"m={m}")
        _line(exact, ax, beside, look, "")
        for _, cell in exact:
            ax.axhline(100 * cell.metrics["accuracy"], color=look.colour, ls=":", lw=0.8)
    _draw_chance(cells, ax.axhline)
    ax.set_xticks(range(len(order)), ["exact" if n == np.inf else f"{n:.0f}" for n in order])


def scaling(methods: Looks, cells: list[Cell], ax: Any) -> None:
    """Accuracy against the size of the model, a line for each method. Models of one size stand one
    above the other."""
    for name in dict.fromkeys(cell.name for cell in cells):
        line = [((cell.parameters or 0) / 1e9, cell) for cell in cells if cell.name == name]
        _line(line, ax, 0, methods[name], spaced(name))
    ax.set_xscale("log")
    ax.xaxis.set_major_formatter("{x:g}")
    ax.xaxis.set_minor_formatter("{x:g}")


def radar(methods: Looks, cells: list[Cell], ax: Any) -> None:
    """A spoke for each model and task, and on it each method at its accuracy; 100% is the rim."""
    spokes = list(dict.fromkeys((cell.label, cell.task) for cell in cells))
    angles = np.linspace(0, 2 * np.pi, len(spokes) + 1)
    x, y = np.sin(angles), np.cos(angles)
    for share in (25, 50, 75, 100):
        ax.plot(share * x, share * y, color="#dddddd", lw=0.7)
        ax.annotate(share, (0, share), fontsize=6, color="#777777")
    for name in dict.fromkeys(cell.name for cell in cells):
        shares = {(cell.label, cell.task): _percent(cell)[0] for cell in cells if cell.name == name}
        if shares.keys() == set(spokes):
            r = np.array([shares[spoke] for spoke in [*spokes, spokes[0]]])
            ax.plot(r * x, r * y, label=spaced(name), **methods[name].line)
    for (model, task), at, up in zip(spokes, x, y, strict=False):
        beside = {"ha": "center", "va": "center", "fontsize": 7}
        ax.annotate(wrapped(f"{model}\n{task}", 1.4), (140 * at, 118 * up), **beside)
    ax.set(xlim=(-190, 190), ylim=(-135, 135), aspect="equal")
    ax.axis("off")


def one_question(methods: Looks, question: dict[str, Any], ax: Any) -> None:
    """The probability that each method gives to each choice of a question."""
    choices, answer = question["choices"], question["answer"]
    K = len(choices)
    height = 0.8 / len(question["methods"])
    for i, (name, p) in enumerate(question["methods"].items()):
        places = [K - 1 - k + height * (0.5 - i) for k in range(K)]
        look = methods[name].bar
        ax.barh(places, [100 * share for share in p], height, label=spaced(name), **look)
    marked = [f"{text} ✓" if k == answer else text for k, text in enumerate(choices)]
    ax.set_yticks(range(K), [wrapped(shorten(text, 60), 1.2) for text in reversed(marked)])
    ax.set_xlim(0, 100)
    ax.grid(visible=False, axis="y")


def accuracies(names: Sequence[str], methods: Looks, cells: list[Cell], ax: Any) -> None:
    """A bar for each method."""
    for cell in cells:
        value, reach = _percent(cell)
        _bar(names, cell.name, value, f"{value:.1f}", methods[cell.name], ax, reach)
    _draw_chance(cells, ax.axvline)
    ax.set_xlim(0, 118)  # room for the texts
    ax.set_xticks(range(0, 101, 20))


def costs(names: Sequence[str], cells: list[Cell], *axes: Any) -> None:
    """Seconds per question and peak memory of each engine."""
    engines = looks(ENGINES)
    units = {"seconds_per_question": 1, "peak_bytes": 2**20}
    for ax, (what, unit) in zip(axes, units.items(), strict=True):
        for cell in cells:
            value = cell.timing[what]
            text = "not measured" if value is None else f"{value / unit:.3g}"
            _bar(names, cell.name, (value or 0) / unit, text, engines[cell.engine], ax)
        ax.set_xlim(0, 1.18 * max([cell.timing[what] or 0 for cell in cells]) / unit or 1)


def bars_height(names: Sequence[str]) -> float:
    """Inches for a bar of each name."""
    lines = max(_tick(name).count("\n") for name in names) + 1
    return 0.5 + len(names) * (0.15 + 0.15 * lines)


def spaced(name: str) -> str:
    """A method's name, with spaces where a line may end."""
    return re.sub(r"(?<=\w)\(", " (", re.sub(r",(?=\w)", ", ", name))


def _tick(name: str) -> str:
    return wrapped(spaced(name), 2.3)


def _trials(cell: Cell) -> float:
    return np.inf if cell.settings.get("grouping") == "exact" else cell.settings["trials"]


def _percent(cell: Cell) -> tuple[float, Any]:
    """The accuracy, and how far its interval reaches below and above: (2, 1)."""
    value = 100 * cell.metrics["accuracy"]
    return value, abs(100 * np.array(cell.metrics["accuracy_interval"])[:, None] - value)


def _line(
    cells: Sequence[tuple[float, Cell]], ax: Any, beside: float, look: Look, label: str
) -> None:
    """The accuracies of cells, each with its place; all are drawn `beside` these."""
    if not cells:
        return
    ordered = sorted(cells, key=itemgetter(0))
    values, reaches = zip(*(_percent(cell) for _, cell in ordered), strict=True)
    xs = [at + beside for at, _ in ordered]
    ax.errorbar(xs, values, np.hstack(reaches), label=label, elinewidth=0.9, **look.line)


def _beside(i: int, count: int) -> float:
    """How far line i of so many stands beside places 1 apart: no interval covers another."""
    return (i - (count - 1) / 2) * min(0.08, 0.6 / count)


def _bar(
    names: Sequence[str], name: str, value: float, text: str, look: Look, ax: Any, reach: Any = None
) -> None:
    """A bar, with `text` at the right of the axes. The first of the names is on top."""
    place = len(names) - 1 - names.index(name)
    ax.barh(place, value, 0.7, xerr=reach, error_kw={"elinewidth": 1}, **look.bar)
    at = {"xycoords": ("axes fraction", "data"), "ha": "right", "va": "center"}
    ax.annotate(text, (1, place), fontsize="small", **at)
    ax.set_yticks(range(len(names)), map(_tick, reversed(names)))
    ax.grid(visible=False, axis="y")


def _chance(cells: Sequence[Cell]) -> float:
    """In percent."""
    return 100 * float(np.mean([cell.metrics["chance"] for cell in cells]))


def _draw_chance(cells: Sequence[Cell], line: Callable[..., Any]) -> None:
    line(_chance(cells), color=text_colour(), **_CHANCE)
