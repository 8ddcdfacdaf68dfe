"""Figures from results made by hand: axes and lines, and the files."""

from __future__ import annotations

from pathlib import Path

import pytest

from minise.errors import InputError
from minise.evaluation import figures
from minise.evaluation.results import Results
from tests.made_results import STUDY, cell, make, ours

pytest.importorskip("matplotlib")


def test_choices() -> None:
    tasks = {f"t{k}": {"standard": cell(), "ours": ours()} for k in (2, 4, 8)}
    run = Results.from_json(make("choices", tasks, {f"t{k}": ("qasc", k) for k in (2, 4, 8)}))
    drawn = figures.make_figures([run, run])
    for ax in drawn["accuracy-choices"].axes:
        assert [bars.get_label() for bars in ax.containers] == ["standard", "ours"]
        assert list(ax.containers[0].lines[0].get_xdata()) == [2, 4, 8]
    curves = drawn["confidence-choices"].axes
    assert len(curves) == 4
    assert [line.get_label() for line in curves[0].lines] == ["K=2", "K=4", "K=8"]


def test_sensitivity() -> None:
    sizes = {(m, n): {"group_size": m, "trials": n} for m in (3, 4) for n in (10, 80)}
    cells = {str(key): cell("first-trials", settings=s) for key, s in sizes.items()}
    exact = {"group_size": 3, "trials": 0, "grouping": "exact"}
    cells["x"] = cell("self-ensemble", settings=exact)
    run = Results.from_json(make("sensitivity", {"q": cells}))
    (ax,) = figures.make_figures([run])["sensitivity"].axes
    assert len(ax.lines) == 3  # two sizes, and the exact expectation of one
    assert ax.get_legend_handles_labels()[1] == ["m=3", "m=4"]
    assert [label.get_text() for label in ax.get_xticklabels()] == ["10", "80"]


def test_efficiency_and_groupings() -> None:
    engines = {"multi-pass": "separate", "single-pass": "dense", "tree": "tree"}
    cells = {name: ours(engine=engine) for name, engine in engines.items()}
    run = Results.from_json(make("efficiency", {"q": cells, "r": cells}))
    axes = figures.make_figures([run])["efficiency"].axes
    assert [len(ax.patches) for ax in axes] == [3, 3, 3, 3]
    run = Results.from_json(
        make("groupings", {"q": {"x": cell()}}, extra={"groupings": {"q": STUDY}})
    )
    (ax,) = figures.make_figures([run])["groupings"].axes
    assert [line.get_label() for line in ax.lines] == ["random", "balanced"]
    assert [text.get_text() for text in ax.texts] == ["1", "5", "1", "5"]


def test_files_are_named_by_what_they_show(tmp_path: Path) -> None:
    curve = {"tau": [0.0, 1.0], "correct": None, "incorrect": [1.0, 0.0]}
    tasks = {"a": {"standard": cell(confidence_curve=curve)}, "b": {"own": cell("./x.py:X")}}
    paths = figures.draw([Results.from_json(make("main", tasks))], tmp_path)
    assert [path.name for path in paths] == ["confidence-a.png", "confidence-b.png"]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in paths)


NAMES = ["x$_{$", "鳥の問題", "\x1b[31m", "../../up", "a/b", "%s{}", "\ud800", "_hidden"]


@pytest.mark.parametrize("experiment", ["main", "choices", "efficiency", "groupings"])
@pytest.mark.parametrize("name", NAMES)
def test_any_name_can_be_drawn(
    name: str, experiment: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Nothing of it is a formula, a path or a command, and no letter is missed aloud."""
    run = make(experiment, {name: {name: cell()}}, extra={"groupings": {name: STUDY}}, model=name)
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
