"""The style of the figures: looks, panels that wrap, and texts that cover nothing."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("matplotlib")

from matplotlib.colors import to_rgba

from minise.report.drawing import PANELS_IN_A_ROW, looks, style
from tests.support.figures import (
    ABLATED,
    LONG,
    TWELVE,
    assert_readable,
    drawn,
    keys,
    methods,
    run,
)


class TestTheStyle:
    def test_a_method_looks_the_same_in_all_figures_and_unlike_the_others(self) -> None:
        by_name = drawn(run(None, {"q": methods(*TWELVE[::-1]), "r": methods("cyclic", "x")}))
        looks_of: dict[str, set[Any]] = {}
        for name in ("confidence-q", "confidence-r"):
            for line in by_name[name].axes[0].lines:
                look = (to_rgba(line.get_color()), line.get_linestyle(), line.get_marker())
                looks_of.setdefault(line.get_label(), set()).add(look)
        assert len(looks_of) == 12
        assert all(len(each) == 1 for each in looks_of.values())
        assert len(set.union(*looks_of.values())) == 12
        colours = {name: next(iter(each))[0] for name, each in looks_of.items()}
        assert colours["self-ensemble"] != colours["self-ensemble-b"]
        names = [label.get_text() for label in by_name["accuracy"].axes[0].get_yticklabels()]
        bars = by_name["accuracy"].axes[0].patches
        assert len({(bar.get_facecolor(), bar.get_hatch()) for bar in bars}) == len(names) == 12
        for bar, name in zip(bars, names[::-1], strict=True):
            if name in colours:
                assert bar.get_facecolor() == colours[name]

    def test_no_two_of_many_look_alike(self) -> None:
        for ordered in (False, True):
            chosen = looks(range(40), ordered=ordered).values()
            assert len({(look.colour, look.dash, look.marker) for look in chosen}) == 40

    def test_panels_wrap_and_nothing_covers_or_leaves_the_figure(self) -> None:
        models = [run(None, {"q": methods(*ABLATED, LONG)}, model=f"x/{i}") for i in range(5)]
        by_name = drawn(*models)
        assert len(by_name["confidence-q"].axes) == 2 * 5
        columns = {ax.get_subplotspec().colspan.start for ax in by_name["confidence-q"].axes}
        assert columns == set(range(PANELS_IN_A_ROW))
        shown = " ".join(keys(by_name["confidence-q"])[-1].split())
        assert shown.startswith("my-method (grouping=exact, group_size=3, ")
        many = drawn(run(None, {"q": methods(*TWELVE)}))
        with style():
            for figure in (by_name["accuracy"], by_name["confidence-q"], *many.values()):
                assert_readable(figure)
