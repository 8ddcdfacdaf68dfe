"""The panels of figures that are drawn from results made by hand."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("matplotlib")

from scipy.stats import binomtest

from minise.report.panels import merged, wilson
from minise.report.results import Results
from tests.support.figures import (
    ABLATED,
    TWELVE,
    assert_readable,
    caption,
    chances,
    drawn,
    grids,
    keys,
    methods,
    run,
)
from tests.support.results import LLAMA, cell, make, ours


class TestReliability:
    def test_each_method_has_a_panel_with_its_bins(self) -> None:
        figure = drawn(run(None, {"q": methods("standard", "cyclic")}))["reliability-q"]
        titles = [" ".join(ax.get_title().split()) for ax in figure.axes[:2]]
        ece = "ECE 0.800 [0.700, 0.900]"
        assert titles == [f"{LLAMA}, standard {ece}", f"{LLAMA}, cyclic {ece}"]
        above, below = figure.axes[0], figure.axes[2]
        (points,) = above.containers
        # The bin of 4 questions is merged with the next one, of 40 predictions.
        first = (4 * 0.7 + 40 * 0.9) / 44
        assert list(points.lines[0].get_xdata()) == pytest.approx([first, 0.98])
        assert list(points.lines[0].get_ydata()) == pytest.approx([100 * 33 / 44, 100.0])
        # A question counts once, however many seeds it has: here two.
        for segment, right, n in zip(
            points.lines[2][0].get_segments(), (16.5, 30), (22, 30), strict=True
        ):
            assert segment[:, 1] == pytest.approx(100 * np.array(wilson(right / n, n)))
        assert [bar.get_height() for bar in below.patches] == [0] * 10 + [4, 0, 0, 40, 60]
        diagonal = next(line for line in above.lines if "calibrated" in str(line.get_label()))
        assert (list(diagonal.get_xdata()), list(diagonal.get_ydata())) == ([0, 1], [0, 100])
        assert chances(above) == [[12.5, 12.5]]
        assert set(keys(figure)) == {"calibrated: accuracy = f", "chance (1/K)"}
        for words in ("f: the probability", "15 bins", "ECE", "Wilson", "10 questions"):
            assert words in caption(figure)

    @pytest.mark.parametrize(
        ("questions", "drawn_as"),
        [
            ([0, 4, 0, 5, 1, 20], [10, 20]),
            ([12, 10, 11], [12, 10, 11]),
            ([30, 9, 1, 3], [30, 13]),
            ([30, 3], [33]),
            ([2, 0, 3], [5]),
            ([12, 10], [12, 10]),
            ([10, 9], [19]),
        ],
    )
    def test_neighbouring_bins_are_merged_until_each_has_ten_questions(
        self, questions: list[int], drawn_as: list[int]
    ) -> None:
        """Without loss: the predictions, the mean f and the accuracy of all stay the same."""
        f = [None if n == 0 else (i + 0.5) / 10 for i, n in enumerate(questions)]
        right = [None if n == 0 else (i + 1) / 10 for i, n in enumerate(questions)]
        bins = {"count": questions, "questions": questions, "confidence": f, "accuracy": right}
        mean_f, share, n = merged(bins, seeds=1)
        assert list(n) == drawn_as
        assert list(mean_f) == sorted(mean_f)
        for values, before in ((mean_f, f), (share, right)):
            whole = sum(k * (value or 0) for k, value in zip(questions, before, strict=True))
            assert values @ n == pytest.approx(whole)

    def test_predictions_are_counted_in_whole_numbers(self) -> None:
        one = {**cell()["reliability"], "count": [0] * 14 + [1], "questions": [0] * 14 + [1]}
        figure = drawn(run(None, {"q": {"standard": cell(reliability=one)}}))["reliability-q"]
        assert all(tick == int(tick) for tick in figure.axes[1].get_yticks())

    def test_bins_of_several_seeds_never_claim_more_questions_than_there_are(self) -> None:
        """Five questions, each in both bins under one of two seeds: five and not ten."""
        bins = {"count": [5, 5], "questions": [5, 5], "confidence": [0.2, 0.4], "accuracy": [0, 1]}
        assert merged(bins, seeds=2).T.tolist() == [pytest.approx([0.3, 0.5, 5])]

    def test_the_wilson_interval_is_the_published_formula(self) -> None:
        for right, n in [(0, 1), (1, 1), (3, 7), (50, 90)]:
            interval = binomtest(right, n).proportion_ci(method="wilson")
            assert wilson(right / n, n) == pytest.approx((interval.low, interval.high))


class TestAccuracy:
    def test_each_variant_has_a_bar_with_its_interval_and_chance_is_marked(self) -> None:
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
        assert "95% bootstrap intervals, those of report.md" in caption(figure)
        cells = {name: cell(name, accuracy=1.0) for name in ABLATED}
        assert_readable(drawn(run("ablation", {"q": cells}))["accuracy"])

    def test_accuracy_is_drawn_against_the_number_of_choices(self) -> None:
        tasks = {f"t-k{k}": {"standard": cell(chance=1 / k), "ours": ours()} for k in (2, 4, 8)}
        results = run("choices", tasks, {f"t-k{k}": ("qasc", k) for k in (2, 4, 8)})
        by_name = drawn(results, results)
        assert keys(by_name["accuracy-choices"]) == ["chance (1/K)", "standard", "ours"]
        for ax in by_name["accuracy-choices"].axes:
            assert ax.get_title() == LLAMA  # one task needs no name
            assert [bars.get_label() for bars in ax.containers] == ["standard", "ours"]
            places = [bars.lines[0].get_xdata() for bars in ax.containers]
            assert np.mean(places, axis=0) == pytest.approx([2, 4, 8])  # beside each other
            segments = ax.containers[0].lines[2][0].get_segments()
            assert [list(one[:, 1]) for one in segments] == [pytest.approx([70, 90])] * 3
            assert [tick.get_text() for tick in ax.get_xticklabels()] == ["2", "4", "8"]
        curves = by_name["confidence-choices"].axes
        assert len(curves) == 4
        assert [line.get_label() for line in curves[0].lines] == ["K=2", "K=4", "K=8"]

    def test_marks_of_many_methods_stay_near_their_number_of_choices(self) -> None:
        """A third of the way from one K to the next stays free."""
        tasks = {f"t-k{k}": methods(*TWELVE) for k in (4, 6)}
        figure = drawn(run("choices", tasks, {f"t-k{k}": ("qasc", k) for k in (4, 6)}))
        lines = [bars.lines[0] for bars in figure["accuracy-choices"].axes[0].containers]
        small, large = zip(*(line.get_xdata() for line in lines), strict=True)
        assert sorted(set(small)) == list(small)  # beside each other, in their order
        assert min(large) - max(small) > 2 / 3

    def test_chance_falls_as_the_number_of_choices_grows(self) -> None:
        tasks = {f"t-k{k}": {"standard": cell(chance=1 / k)} for k in (2, 4, 8)}
        figure = drawn(run("choices", tasks, {f"t-k{k}": ("qasc", k) for k in (2, 4, 8)}))
        assert chances(figure["accuracy-choices"].axes[0]) == [[50.0, 25.0, 12.5]]

    def test_accuracy_is_drawn_against_the_number_of_trials(self) -> None:
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


def test_axes_have_labels() -> None:
    trials = {"x": cell("first-trials", settings={"group_size": 3, "trials": 10})}
    by_k = {f"t-k{k}": ("qasc", k) for k in (2, 4)}
    labels = {
        name: [(ax.get_xlabel(), ax.get_ylabel()) for ax in drawn(results)[name].axes]
        for name, results in {
            "accuracy": run(None, {"q": methods("standard")}),
            "accuracy-choices": run("choices", {k: methods("standard") for k in by_k}, by_k),
            "sensitivity": run("sensitivity", {"q": trials}),
            "efficiency": run("efficiency", {"q": methods("tree")}),
        }.items()
    }
    assert labels == {
        "accuracy": [("accuracy (%)", "")],
        "accuracy-choices": [("choices K", "accuracy (%)")],
        "sensitivity": [("trials N", "accuracy (%)")],
        "efficiency": [("seconds a question", ""), ("peak MiB", " ")],
    }


def test_shares_have_axes_from_0_to_1_with_room_for_their_marks() -> None:
    by_name = drawn(run(None, {"q": methods("standard", "cyclic")}))
    for name in ("confidence-q", "reliability-q"):
        axes = by_name[name].axes
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
    explanation = (
        "f: the probability of the predicted choice. τ: any bound from 0 to 1. Better: high"
    )
    assert caption(figure).startswith(explanation)


def test_efficiency_has_bars_of_seconds_and_memory() -> None:
    engines = {"multi-pass": "separate", "single-pass": "dense", "tree": "tree"}
    cells = {name: ours(engine=engine) for name, engine in engines.items()}
    results = make("efficiency", {"q": cells, "r": cells})
    results["timing"]["r"]["tree"]["peak_bytes"] = None
    figure = drawn(Results.from_json(results))["efficiency"]
    axes = figure.axes
    assert_readable(figure)
    assert [len(ax.patches) for ax in axes] == [3, 3, 3, 3]
    assert [text.get_text() for text in axes[3].texts] == ["3", "3", "not measured"]
    for ax in axes:  # the longest bar leaves room for the texts, and no more
        assert 0.8 < max(bar.get_width() for bar in ax.patches) / ax.get_xlim()[1] < 0.9
