"""The plot of `minise bench`: what is drawn, and what is printed before and after."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from minise.bench import plot
from minise.bench.workloads import WORKLOADS
from minise.commands.cli import main
from minise.engines import token_counts
from minise.errors import InputError
from minise.names import ENGINES
from minise.report.drawing import style
from tests.support.timed import LLAMA, SMALL, timings


class TestThePlot:
    """The times in these tests are invented."""

    @pytest.fixture(autouse=True)
    def small(self, monkeypatch: pytest.MonkeyPatch) -> None:
        pytest.importorskip("matplotlib")
        monkeypatch.setattr(plot, "TRIALS", (1, 2, 4))
        monkeypatch.setattr(plot, "CHOICES", (3, 5))

    def test_the_estimated_time_of_a_call_is_proportional_to_its_tokens(self) -> None:
        """At the rate that the engines had on the workload itself."""
        calls, left_out = plot.plan_calls(LLAMA, SMALL, 0, timings(separate=3, dense=2, tree=1))
        assert left_out == []
        assert [(call.axis, call.value) for call in calls[::3]] == [
            *(("N", 1), ("N", 2), ("N", 4), ("K", 3), ("K", 5)),
        ]
        assert [call.engine for call in calls] == ["separate", "dense", "tree"] * 5
        by_place = {(call.axis, call.value, call.engine): call.expected for call in calls}
        assert by_place["K", 5, "separate"] == pytest.approx(3)  # the workload that was measured
        assert by_place["N", 4, "separate"] == pytest.approx(4)
        assert by_place["N", 1, "separate"] == pytest.approx(1)

    def test_calls_that_would_take_too_long_are_left_out_and_named(
        self, monkeypatch: pytest.MonkeyPatch, capsys, tmp_path: Path
    ) -> None:
        as_measured = token_counts(*SMALL.prompts(99, 0)[:2])["dense"]
        monkeypatch.setattr(plot, "LONGEST", {"dense": as_measured})
        slow = timings(separate=50, dense=2, tree=1)  # over 60 seconds at N=4
        plot.plot_growth(LLAMA, SMALL, 0, 1, slow, tmp_path / "growth.png")
        line = capsys.readouterr().err.splitlines()[0]
        assert line == "minise: left out of the plot, as too long: separate at N=4, dense at N=4"
        never = timings(separate=1000, dense=1000, tree=1000)
        with pytest.raises(InputError, match="nothing to draw: each call would take over 60 sec"):
            plot.plot_growth(LLAMA, SMALL, 0, 1, never, tmp_path / "growth.png")

    @pytest.mark.parametrize(
        ("seconds", "words"), [(0.001, "about 2 seconds"), (10.0, "about 6 minutes")]
    )
    def test_the_estimated_time_is_printed_first(
        self, seconds: float, words: str, monkeypatch: pytest.MonkeyPatch, capsys, tmp_path: Path
    ) -> None:
        order = []

        def call(_: object, __: object, ___: object, engine: str, ____: object) -> None:
            order.append(engine)

        monkeypatch.setattr(plot, "branch_logits", call)
        even = timings(separate=seconds, dense=seconds, tree=seconds)
        plot.plot_growth(LLAMA, SMALL, 0, 3, even, tmp_path / "growth.png")
        assert f"minise: the plot takes {words}: 3 rounds of 15 calls\n" in capsys.readouterr().err
        assert order == ["separate", "dense", "tree"] * 15  # in turn, one call each in a round

    def test_the_plot_shows_medians_and_their_spread(self) -> None:
        times = [3.0, 1.0, 2.0, 8.0]
        prompts = SMALL.prompts(99, 0)
        calls = [
            plot.Call(axis, value, engine, prompts, 1.0, times)
            for axis, value in [("N", 1), ("N", 2), ("K", 3), ("K", 5)]
            for engine in ENGINES
        ]
        with style():
            figure = plot.make_figure(calls, SMALL, len(times))
        for ax, name in zip(figure.axes, ("trials N", "choices K"), strict=True):
            assert ax.get_xlabel() == name
            assert [line.get_label() for line in ax.lines] == list(ENGINES)
            assert [list(line.get_ydata()) for line in ax.lines] == [[2.5, 2.5]] * len(ENGINES)
            for band in ax.collections:
                heights = band.get_paths()[0].vertices[:, 1]
                assert (min(heights), max(heights)) == (1.0, 8.0)
        caption = " ".join(figure.get_supxlabel().split())
        assert "medians of 4 rounds; bands: from the fastest to the slowest" in caption

    @pytest.mark.parametrize("ending", ["png", "svg"])
    def test_the_command_prints_the_paths_of_its_files(
        self, ending: str, capsys, tmp_path: Path, llama_folder: Path
    ) -> None:
        path = tmp_path / f"growth.{ending}"
        command = ["bench", "--model", str(llama_folder), "--rounds", "1", "--no-peers"]
        assert main([*command, "--plot", str(path)]) == 0
        out, err = capsys.readouterr()
        assert out.endswith(f"\nwritten: {path}\n")
        assert path.stat().st_size > 1000
        assert "minise: the plot takes about" in err

    def test_with_json_nothing_else_is_printed(
        self, capsys, tmp_path: Path, llama_folder: Path
    ) -> None:
        command = ["bench", "--model", str(llama_folder), "--rounds", "1", "--no-peers", "--json"]
        assert main([*command, "--plot", str(tmp_path / "growth.png")]) == 0
        report = json.loads(capsys.readouterr().out)
        assert report["rows"]
        calls = [(one["axis"], one["value"], one["engine"]) for one in report["growth"]]
        assert {axis for axis, _, _ in calls} == {"N", "K"}
        assert len({*calls}) == len(calls) >= 5 * 3
        assert all(len(one["seconds"]) == 1 for one in report["growth"])

    def test_a_picture_that_cannot_be_written_is_one_line(
        self, capsys, tmp_path: Path, llama_folder: Path, monkeypatch
    ) -> None:
        def full(*_: object, **__: object) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr("matplotlib.figure.Figure.savefig", full)
        command = ["bench", "--model", str(llama_folder), "--rounds", "1", "--no-peers"]
        assert main([*command, "--plot", str(tmp_path / "growth.png")]) == 2
        last = capsys.readouterr().err.splitlines()[-1]
        assert "growth.png: cannot be drawn as a picture" in last


def test_the_values_of_the_plot_take_some_ten_minutes_at_three_rounds() -> None:
    """At the seconds of docs/costs.md: the default shape and workload on two cores."""
    measured = timings(WORKLOADS["qasc"], separate=3.714, dense=1.640, tree=1.089)
    calls, left_out = plot.plan_calls(LLAMA, WORKLOADS["qasc"], 0, measured)
    assert left_out == []
    assert 3 * sum(call.expected for call in calls) < 10 * 60
