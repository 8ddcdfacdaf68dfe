"""Figures drawn from results made by hand, and what can be read from them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import Any

import pytest

pytest.importorskip("matplotlib")

from matplotlib.backends.backend_agg import FigureCanvasAgg

from minise.report import figures
from minise.report.drawing import style
from minise.report.results import Results
from tests.support.results import cell, make

ABLATED = ("standard", "without-mask", "without-positions", "self-ensemble")
LONG = "my-method(grouping=exact,group_size=3,trials=14,null_option=false,preset=authors-code)"
TWELVE = (*ABLATED, "cyclic", "vector-scaling", "dirichlet", "x", "self-ensemble-b", "y", "z", LONG)


def run(experiment: str | None, tasks: Any, *more: Any, **config: Any) -> Results:
    return Results.from_json(make(experiment, tasks, *more, **config))


def drawn(*runs: Results) -> dict[str, Any]:
    with style():
        return figures.make_figures(runs)


def methods(*names: str, **more: Any) -> dict[str, Any]:
    return {name: cell(name.partition("(")[0], **more) for name in names}


def keys(figure: Any) -> list[str]:
    return [text.get_text() for legend in figure.legends for text in legend.get_texts()]


def caption(figure: Any) -> str:
    """On one line."""
    return " ".join(figure.get_supxlabel().split())


def chances(ax: Any) -> list[list[float]]:
    """The positions of the chance line: its heights, or its x values beside bars."""
    lines = [line for line in ax.lines if line.get_label() == "chance (1/K)"]
    return [list(line.get_xdata() if ax.patches else line.get_ydata()) for line in lines]


def grids(ax: Any) -> tuple[bool, ...]:
    """Whether there are grid lines at the ticks of x, and of y."""
    axes = ax.xaxis, ax.yaxis
    return tuple(any(line.get_visible() for line in axis.get_gridlines()) for axis in axes)


def assert_readable(figure: Any) -> None:
    """The texts outside the axes lie in the figure; no legend and no title covers axes, and no
    label of a tick another. In axes no bar covers another, or a text."""
    FigureCanvasAgg(figure)  # it keeps one renderer; without it each extent would make another
    figure.draw_without_rendering()
    axes = [ax.get_window_extent() for ax in figure.axes]
    whole = figure.bbox.padded(2)
    beside: Sequence[Any] = [
        *(legend.get_window_extent() for legend in figure.legends),
        *(ax.title.get_window_extent() for ax in figure.axes),
        figure._supxlabel.get_window_extent(),
    ]
    for box in beside:
        assert whole.containsx(box.x0)
        assert whole.containsx(box.x1)
        assert whole.containsy(box.y0)
        assert whole.containsy(box.y1)
        assert not any(box.padded(-1).overlaps(one) for one in axes)
    for ax in figure.axes:
        for ticks in (ax.get_xticklabels(), ax.get_yticklabels()) if ax.axison else ():
            labels = [tick.get_window_extent().padded(-1) for tick in ticks if tick.get_text()]
            assert not any(a.overlaps(b) for a, b in combinations(labels, 2))
        texts = [text.get_window_extent() for text in ax.texts]
        bars = [bar.get_window_extent() for bar in ax.patches]
        inner = [bar.padded(-1) for bar in bars if min(bar.width, bar.height) > 2]
        for i, bar in enumerate(inner):
            assert not any(bar.overlaps(other) for other in [*inner[i + 1 :], *texts])
