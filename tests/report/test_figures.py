"""Figures from results made by hand: which there are, what stands in them, and the files."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("matplotlib")

from matplotlib.colors import to_rgba
from scipy.stats import binomtest

from minise.errors import InputError
from minise.evaluation.experiments import EXPERIMENTS, NO_EXPERIMENT
from minise.report import figures
from minise.report.drawing import PANELS_IN_A_ROW, looks, style
from minise.report.panels import wilson
from minise.report.results import Results
from tests.support.made_results import LLAMA, M4, cell, make, ours

ABLATED = ("standard", "without-mask", "without-positions", "self-ensemble")
LONG = "my-method(grouping=balanced,group_size=3,trials=14,null_option=false,preset=authors-code)"
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
    """The heights, or for bars the places, of the chance line."""
    lines = [line for line in ax.lines if line.get_label() == "chance (1/K)"]
    return [list(line.get_xdata() if ax.patches else line.get_ydata()) for line in lines]


def grids(ax: Any) -> tuple[bool, ...]:
    """Whether it has lines across at the ticks of x, and of y."""
    axes = ax.xaxis, ax.yaxis
    return tuple(any(line.get_visible() for line in axis.get_gridlines()) for axis in axes)


class TestWhichThereAre:
    @pytest.mark.parametrize(
        ("experiment", "names"),
        [
            *((name, "accuracy confidence-q reliability-q") for name in (None, "main", "ablation")),
            ("choices", "accuracy-choices confidence-choices reliability-q"),
            ("sensitivity", "sensitivity"),
            ("efficiency", "efficiency"),
        ],
    )
    def test_by_experiment(self, experiment: str | None, names: str) -> None:
        sized = {"standard": cell(settings=M4)}
        assert list(drawn(run(experiment, {"q": sized}))) == names.split()

    def test_every_figure_of_an_experiment_exists_and_every_figure_is_used(self) -> None:
        named = {name for one in (*EXPERIMENTS.values(), NO_EXPERIMENT) for name in one.figures}
        assert named == set(figures.FIGURES)

    def test_without_answers_there_is_nothing_to_draw(self) -> None:
        assert drawn(run(None, {})) == {}


class TestReliability:
    def test_each_method_has_a_panel_of_its_bins(self) -> None:
        figure = drawn(run(None, {"q": methods("standard", "cyclic")}))["reliability-q"]
        titles = [" ".join(ax.get_title().split()) for ax in figure.axes[:2]]
        ece = "ECE 0.800 [0.700, 0.900]"
        assert titles == [f"{LLAMA}, standard {ece}", f"{LLAMA}, cyclic {ece}"]
        above, below = figure.axes[0], figure.axes[2]
        (points,) = above.containers
        assert list(points.lines[0].get_xdata()) == [0.7, 0.9, 0.98]
        assert list(points.lines[0].get_ydata()) == [25.0, 80.0, 100.0]
        # A question counts once, however many seeds it has.
        for segment, right, n in zip(
            points.lines[2][0].get_segments(), (1, 16, 30), (4, 20, 30), strict=True
        ):
            interval = binomtest(right, n).proportion_ci(method="wilson")
            assert segment[:, 1] == pytest.approx([100 * interval.low, 100 * interval.high])
        assert [bar.get_height() for bar in below.patches] == [0] * 10 + [4, 0, 0, 40, 60]
        diagonal = next(line for line in above.lines if "calibrated" in str(line.get_label()))
        assert (list(diagonal.get_xdata()), list(diagonal.get_ydata())) == ([0, 1], [0, 100])
        assert chances(above) == [[12.5, 12.5]]
        assert set(keys(figure)) == {"calibrated: accuracy = f", "chance (1/K)"}
        for words in ("f: the probability", "15 bins", "ECE", "Wilson", "number of predictions"):
            assert words in caption(figure)

    def test_the_wilson_interval(self) -> None:
        for right, n in [(0, 1), (1, 1), (3, 7), (50, 90)]:
            interval = binomtest(right, n).proportion_ci(method="wilson")
            assert wilson(right / n, n) == pytest.approx((interval.low, interval.high))


class TestAccuracy:
    def test_the_ablation_has_a_bar_for_each_with_its_interval_and_chance(self) -> None:
        cells = {name: cell(name, accuracy=0.75) for name in ABLATED}
        figure = drawn(run("ablation", {"q": cells}))["accuracy"]
        (ax,) = figure.axes
        named = [label.get_text() for label in ax.get_yticklabels()]
        assert named == list(reversed(ABLATED))  # the first on top
        assert list(ax.get_yticks()) == [0, 1, 2, 3]
        middles = [bar.get_y() + bar.get_height() / 2 for bar in ax.patches]
        assert middles == pytest.approx([3, 2, 1, 0])
        assert [bar.get_width() for bar in ax.patches] == [75.0] * 4
        reaches = [bars.lines[2][0].get_segments()[0] for bars in ax.containers[::2]]
        assert [list(reach[:, 0]) for reach in reaches] == [pytest.approx([70, 90])] * 4
        assert chances(ax) == [[12.5, 12.5]]
        assert keys(figure) == ["chance (1/K)"]
        assert [text.get_text() for text in ax.texts] == ["75.0"] * 4
        assert list(ax.get_xticks()) == [0, 20, 40, 60, 80, 100]
        assert grids(ax) == (True, False)
        assert figure.get_figheight() < 3  # inches
        assert "95% bootstrap intervals over questions" in caption(figure)
        cells = {name: cell(name, accuracy=1.0) for name in ABLATED}
        assert_readable(drawn(run("ablation", {"q": cells}))["accuracy"])

    def test_settings_and_symbols_are_below(self) -> None:
        settings = {**M4, "grouping": "balanced", "preset": "paper"}
        cells = {"standard": cell(), "mine": cell("self-ensemble", settings=settings)}
        for figure in drawn(run(None, {"q": cells})).values():
            assert "m: choices in a group. N: partitions into groups." in caption(figure)
            assert "mine: m=4, N=20, grouping=balanced." in caption(figure)

    def test_settings_that_differ_by_task_name_it(self) -> None:
        large = cell("self-ensemble", settings={"group_size": 5, "trials": 40})
        figure = drawn(run("main", {"q": {"ours": ours()}, "b": {"ours": large}}))["accuracy"]
        assert "ours of q: m=4, N=20; ours of b: m=5, N=40." in caption(figure)
        exact = cell("self-ensemble", settings={**M4, "grouping": "exact"})
        figure = drawn(run(None, {"q": {"ours": exact}}))["accuracy"]
        assert "ours: m=4, grouping=exact." in caption(figure)
        figure = drawn(run(None, {"q": {"ours": ours(), "mine": ours()}}))["accuracy"]
        assert "ours, mine: m=4, N=20." in caption(figure)

    def test_settings_that_differ_by_run_name_it(self) -> None:
        other = cell("self-ensemble", settings={"group_size": 4, "trials": 7})
        runs = [run(None, {"q": {"ours": ours()}}), run(None, {"q": {"ours": other}}, label="few")]
        said = caption(drawn(*runs)["accuracy"])
        assert f"ours of {LLAMA}: m=4, N=20" in said
        assert f"ours of {LLAMA}, few: m=4, N=7" in said

    def test_against_choices(self) -> None:
        tasks = {f"t-k{k}": {"standard": cell(chance=1 / k), "ours": ours()} for k in (2, 4, 8)}
        given = run("choices", tasks, {f"t-k{k}": ("qasc", k) for k in (2, 4, 8)})
        found = drawn(given, given)
        assert keys(found["accuracy-choices"]) == ["chance (1/K)", "standard", "ours"]
        for ax in found["accuracy-choices"].axes:
            assert ax.get_title() == LLAMA  # one task needs no name
            assert [bars.get_label() for bars in ax.containers] == ["standard", "ours"]
            places = [bars.lines[0].get_xdata() for bars in ax.containers]
            assert np.mean(places, axis=0) == pytest.approx([2, 4, 8])  # beside each other
            segments = ax.containers[0].lines[2][0].get_segments()
            assert [list(one[:, 1]) for one in segments] == [pytest.approx([70, 90])] * 3
            assert [tick.get_text() for tick in ax.get_xticklabels()] == ["2", "4", "8"]
        curves = found["confidence-choices"].axes
        assert len(curves) == 4
        assert [line.get_label() for line in curves[0].lines] == ["K=2", "K=4", "K=8"]

    def test_the_lines_of_many_methods_keep_to_their_place(self) -> None:
        """A third of the way from one K to the next stays free."""
        tasks = {f"t-k{k}": methods(*TWELVE) for k in (4, 6)}
        figure = drawn(run("choices", tasks, {f"t-k{k}": ("qasc", k) for k in (4, 6)}))
        lines = [bars.lines[0] for bars in figure["accuracy-choices"].axes[0].containers]
        small, large = zip(*(line.get_xdata() for line in lines), strict=True)
        assert sorted(set(small)) == list(small)  # beside each other, in their order
        assert min(large) - max(small) > 2 / 3

    def test_chance_falls_with_the_choices(self) -> None:
        tasks = {f"t-k{k}": {"standard": cell(chance=1 / k)} for k in (2, 4, 8)}
        figure = drawn(run("choices", tasks, {f"t-k{k}": ("qasc", k) for k in (2, 4, 8)}))
        assert chances(figure["accuracy-choices"].axes[0]) == [[50.0, 25.0, 12.5]]

    def test_each_task_has_a_panel_of_its_own(self) -> None:
        cut = [(name, k) for name in ("t", "u") for k in (2, 4)]
        right = dict(zip(cut, (0.6, 0.5, 0.4, 0.3), strict=True))
        tasks = {f"{name}-k{k}": {"standard": cell(accuracy=right[name, k])} for name, k in cut}
        figure = drawn(run("choices", tasks, {f"{name}-k{k}": ("own", k) for name, k in cut}))
        panels = figure["accuracy-choices"].axes
        assert [ax.get_title() for ax in panels] == [f"{LLAMA}, t", f"{LLAMA}, u"]
        lines = [list(ax.containers[0].lines[0].get_ydata()) for ax in panels]
        assert lines == [[60, 50], [40, 30]]

    def test_against_trials(self) -> None:
        sizes = {(m, n): {"group_size": m, "trials": n} for m in (3, 4) for n in (10, 80)}
        cells = {str(key): cell("first-trials", settings=s) for key, s in sizes.items()}
        exact = {"group_size": 3, "trials": 0, "grouping": "exact"}
        cells["x"] = cell("self-ensemble", settings=exact)
        figure = drawn(run("sensitivity", {"q": cells}))["sensitivity"]
        (ax,) = figure.axes
        assert len(ax.containers) == 3  # two sizes, and the exact expectation of one
        points = [len(bars.lines[0].get_xdata()) for bars in ax.containers]
        assert points == [2, 1, 2]  # the line of samples does not go on to it
        assert keys(figure) == ["chance (1/K)", "m=3", "m=4"]
        assert [label.get_text() for label in ax.get_xticklabels()] == ["10", "80", "exact"]
        for bars in ax.containers:
            for segment in bars.lines[2][0].get_segments():
                assert list(segment[:, 1]) == pytest.approx([70, 90])
        across = [line.get_ydata() for line in ax.lines if line.get_linestyle() == ":"]
        assert pytest.approx([80, 80]) in map(list, across)  # at the height of "exact"
        for words in ("m: choices in a group", "N: partitions", "expectation over all groups"):
            assert words in caption(figure)

    def test_models_of_different_sizes_of_groups_stand_together(self) -> None:
        def sized(m: int) -> Results:
            settings = {"group_size": m, "trials": 10}
            return run("sensitivity", {"q": {"x": cell("self-ensemble", settings=settings)}})

        figure = drawn(sized(2), sized(3))["sensitivity"]
        assert [len(ax.containers) for ax in figure.axes] == [1, 1]
        assert keys(figure) == ["chance (1/K)", "m=2", "m=3"]


def test_axes_say_what_they_show() -> None:
    trials = {"x": cell("first-trials", settings={"group_size": 3, "trials": 10})}
    by_k = {f"t-k{k}": ("qasc", k) for k in (2, 4)}
    said = {
        name: [(ax.get_xlabel(), ax.get_ylabel()) for ax in drawn(given)[name].axes]
        for name, given in {
            "accuracy": run(None, {"q": methods("standard")}),
            "accuracy-choices": run("choices", {k: methods("standard") for k in by_k}, by_k),
            "sensitivity": run("sensitivity", {"q": trials}),
            "efficiency": run("efficiency", {"q": methods("tree")}),
        }.items()
    }
    assert said == {
        "accuracy": [("accuracy (%)", "")],
        "accuracy-choices": [("choices K", "accuracy (%)")],
        "sensitivity": [("trials N", "accuracy (%)")],
        "efficiency": [("seconds a question", ""), ("peak MiB", " ")],
    }


def test_shares_have_axes_from_0_to_1_with_room_for_their_marks() -> None:
    found = drawn(run(None, {"q": methods("standard", "cyclic")}))
    for name in ("confidence-q", "reliability-q"):
        axes = found[name].axes
        assert len({ax.get_xlim() for ax in axes}) == 1
        for ax in axes:
            low, high = ax.get_xlim()
            assert -0.05 < low < 0
            assert low + high == pytest.approx(1)
        for ax in axes[: None if name == "confidence-q" else 2]:
            low, high = ax.get_ylim()
            assert -5 < low < 0
            assert low + high == pytest.approx(100)


def test_confidence_curves_explain_their_symbols() -> None:
    figure = drawn(run(None, {"q": methods("standard", "cyclic")}))["confidence-q"]
    assert [ax.get_ylabel() for ax in figure.axes] == [
        "% of correct with f > τ",
        "% of incorrect with f > τ",
    ]
    assert keys(figure) == ["standard", "cyclic"]
    said = "f: the probability of the predicted choice. τ: any bound from 0 to 1. Better: high"
    assert caption(figure).startswith(said)


def test_efficiency_has_bars_of_seconds_and_memory() -> None:
    engines = {"multi-pass": "separate", "single-pass": "dense", "tree": "tree"}
    cells = {name: ours(engine=engine) for name, engine in engines.items()}
    given = make("efficiency", {"q": cells, "r": cells})
    given["timing"]["r"]["tree"]["peak_bytes"] = None
    figure = drawn(Results.from_json(given))["efficiency"]
    axes = figure.axes
    assert_readable(figure)
    assert [len(ax.patches) for ax in axes] == [3, 3, 3, 3]
    assert [text.get_text() for text in axes[3].texts] == ["3", "3", "not measured"]
    for ax in axes:  # the longest bar leaves room for the texts, and no more
        assert 0.8 < max(bar.get_width() for bar in ax.patches) / ax.get_xlim()[1] < 0.9


class TestTheStyle:
    def test_a_method_looks_the_same_in_all_figures_and_unlike_the_others(self) -> None:
        found = drawn(run(None, {"q": methods(*TWELVE[::-1]), "r": methods("cyclic", "x")}))
        seen: dict[str, set[Any]] = {}
        for name in ("confidence-q", "confidence-r"):
            for line in found[name].axes[0].lines:
                look = (to_rgba(line.get_color()), line.get_linestyle(), line.get_marker())
                seen.setdefault(line.get_label(), set()).add(look)
        assert len(seen) == 12
        assert all(len(each) == 1 for each in seen.values())
        assert len(set.union(*seen.values())) == 12
        colours = {name: next(iter(each))[0] for name, each in seen.items()}
        assert colours["self-ensemble"] != colours["self-ensemble-b"]
        names = [label.get_text() for label in found["accuracy"].axes[0].get_yticklabels()]
        bars = found["accuracy"].axes[0].patches
        assert len({(bar.get_facecolor(), bar.get_hatch()) for bar in bars}) == len(names) == 12
        for bar, name in zip(bars, names[::-1], strict=True):
            if name in colours:
                assert bar.get_facecolor() == colours[name]

    def test_no_two_of_many_look_alike(self) -> None:
        for ordered in (False, True):
            found = looks(range(40), ordered=ordered).values()
            assert len({(look.colour, look.dash, look.marker) for look in found}) == 40

    def test_panels_wrap_and_nothing_covers_or_leaves_the_figure(self) -> None:
        models = [run(None, {"q": methods(*ABLATED, LONG)}, model=f"x/{i}") for i in range(5)]
        found = drawn(*models)
        assert len(found["confidence-q"].axes) == 2 * 5
        columns = {ax.get_subplotspec().colspan.start for ax in found["confidence-q"].axes}
        assert columns == set(range(PANELS_IN_A_ROW))
        shown = " ".join(keys(found["confidence-q"])[-1].split())
        assert shown.startswith("my-method (grouping=balanced, group_size=3, ")
        many = drawn(run(None, {"q": methods(*TWELVE)}))
        with style():
            for figure in (found["accuracy"], found["confidence-q"], *many.values()):
                assert_readable(figure)


def assert_readable(figure: Any) -> None:
    """The texts outside the axes lie in the figure; no legend and no title covers axes, and no
    label of a tick another. In axes no bar covers another, or a text."""
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


def test_files_are_named_by_what_they_show(tmp_path: Path) -> None:
    curve = {"tau": [0.0, 1.0], "correct": None, "incorrect": [1.0, 0.0]}
    tasks = {"a/b": {"standard": cell(confidence_curve=curve)}, "c\\d": {"own": cell("./x.py:X")}}
    paths = figures.draw([Results.from_json(make("main", tasks))], tmp_path)
    names = ["accuracy", "confidence-a_b", "confidence-c_d", "reliability-a_b", "reliability-c_d"]
    assert [path.name for path in paths] == [f"{name}.png" for name in names]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in paths)


NAMES = ["x$_{$", "鳥の問題", "\x1b[31m", "../../up", "a/b", "%s{}", "\ud800", "_hidden"]


@pytest.mark.parametrize("experiment", ["main", "choices", "efficiency"])
@pytest.mark.parametrize("name", NAMES)
def test_any_name_can_be_drawn(
    name: str, experiment: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Nothing of it is a formula, a path or a command, and no letter is missed aloud."""
    run = make(experiment, {name: {name: cell()}}, model=name)
    paths = figures.draw([Results.from_json(run)], tmp_path)
    assert sorted(paths) == sorted(tmp_path.iterdir())
    assert capfd.readouterr() == ("", "")


def test_a_figure_that_cannot_be_drawn_is_one_line(tmp_path: Path) -> None:
    curve = {"tau": [0.0, 1.0], "correct": [1.0], "incorrect": [1.0]}
    run = Results.from_json(make("main", {"a": {"standard": cell(confidence_curve=curve)}}))
    with pytest.raises(
        InputError, match=r"a figure could not be drawn .*tables are whole"
    ) as caught:
        figures.draw([run], tmp_path)
    assert "\n" not in str(caught.value)
    sound = Results.from_json(make("main", {"a": {"standard": cell()}}))
    (tmp_path / "confidence-a.png").mkdir()
    with pytest.raises(InputError, match=r"could not be drawn .*Is a directory"):
        figures.draw([sound], tmp_path)
