"""Figures from results made by hand: which there are, their captions, and their files."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("matplotlib")


from minise.errors import InputError
from minise.evaluation.experiments import EXPERIMENTS, NO_EXPERIMENT
from minise.report import figures
from minise.report.results import Results
from tests.support.figures import caption, drawn, keys, run
from tests.support.results import LLAMA, M4, cell, make, ours


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
    def test_each_experiment_has_its_figures(self, experiment: str | None, names: str) -> None:
        sized = {"standard": cell(settings=M4)}
        assert list(drawn(run(experiment, {"q": sized}))) == names.split()

    def test_every_figure_of_an_experiment_exists_and_every_figure_is_used(self) -> None:
        named = {name for one in (*EXPERIMENTS.values(), NO_EXPERIMENT) for name in one.figures}
        assert named == set(figures.FIGURES)

    def test_without_answers_there_is_nothing_to_draw(self) -> None:
        assert drawn(run(None, {})) == {}


class TestSettingsAndPanels:
    def test_settings_and_symbols_are_explained_below_the_figure(self) -> None:
        settings = {**M4, "grouping": "independent", "preset": "paper"}
        cells = {"standard": cell(), "mine": cell("self-ensemble", settings=settings)}
        for figure in drawn(run(None, {"q": cells})).values():
            assert "m: choices in a group. N: partitions into groups." in caption(figure)
            assert "mine: m=4, N=20, grouping=independent." in caption(figure)

    def test_settings_that_differ_by_task_are_listed_with_the_task(self) -> None:
        large = cell("self-ensemble", settings={"group_size": 5, "trials": 40})
        figure = drawn(run("main", {"q": {"ours": ours()}, "b": {"ours": large}}))["accuracy"]
        assert "ours of q: m=4, N=20; ours of b: m=5, N=40." in caption(figure)
        exact = cell("self-ensemble", settings={**M4, "grouping": "exact"})
        figure = drawn(run(None, {"q": {"ours": exact}}))["accuracy"]
        assert "ours: m=4, grouping=exact." in caption(figure)
        figure = drawn(run(None, {"q": {"ours": ours(), "mine": ours()}}))["accuracy"]
        assert "ours, mine: m=4, N=20." in caption(figure)

    def test_settings_that_differ_by_run_are_listed_with_the_run(self) -> None:
        other = cell("self-ensemble", settings={"group_size": 4, "trials": 7})
        runs = [run(None, {"q": {"ours": ours()}}), run(None, {"q": {"ours": other}}, label="few")]
        text = caption(drawn(*runs)["accuracy"])
        assert f"ours of {LLAMA}: m=4, N=20" in text
        assert f"ours of {LLAMA}, few: m=4, N=7" in text

    def test_each_task_has_a_separate_panel(self) -> None:
        cut = [(name, k) for name in ("t", "u") for k in (2, 4)]
        right = dict(zip(cut, (0.6, 0.5, 0.4, 0.3), strict=True))
        tasks = {f"{name}-k{k}": {"standard": cell(accuracy=right[name, k])} for name, k in cut}
        figure = drawn(run("choices", tasks, {f"{name}-k{k}": ("own", k) for name, k in cut}))
        panels = figure["accuracy-choices"].axes
        assert [ax.get_title() for ax in panels] == [f"{LLAMA}, t", f"{LLAMA}, u"]
        lines = [list(ax.containers[0].lines[0].get_ydata()) for ax in panels]
        assert lines == [[60, 50], [40, 30]]

    def test_models_with_different_group_sizes_share_a_figure(self) -> None:
        def sized(m: int) -> Results:
            settings = {"group_size": m, "trials": 10}
            return run("sensitivity", {"q": {"x": cell("self-ensemble", settings=settings)}})

        figure = drawn(sized(2), sized(3))["sensitivity"]
        assert [len(ax.containers) for ax in figure.axes] == [1, 1]
        assert keys(figure) == ["chance (1/K)", "m=2", "m=3"]


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
    """No part of it is read as a formula, a path or an escape sequence. Missing letters give no
    warning."""
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
    with pytest.raises(
        InputError, match=r"confidence-a.png: could not be written \(Is a directory\)"
    ):
        figures.draw([sound], tmp_path)
