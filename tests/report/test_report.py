"""`minise report`: what a person sees of finished runs, and what tells one run from another."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest

from minise.commands.cli import main
from minise.report import figures
from tests.support.runs import METHODS, arguments, no_drawing

for module in ("scipy", "sklearn", "matplotlib"):
    pytest.importorskip(module)


class TestTheReport:
    def test_it_is_redrawn_without_a_model(self, whole: Path, tmp_path: Path, capsys) -> None:
        assert main(["report", str(whole), "--output-path", str(tmp_path)]) == 0
        out = capsys.readouterr().out
        found = json.loads((whole / "results.json").read_text())
        accuracy = found["results"]["words"]["self-ensemble"]["accuracy"]
        assert f"{100 * accuracy:.1f} [" in out
        text = (tmp_path / "report.md").read_text()
        assert text.split("\n\n")[0] == out.split(", words\n\n")[0]
        assert "![confidence-words](confidence-words.png)" in text
        assert (tmp_path / "confidence-words.png").read_bytes()[:4] == b"\x89PNG"

    @pytest.mark.parametrize("order", [1, -1])
    def test_runs_of_different_tasks_and_methods_stand_together(
        self, model: Path, data: Path, whole: Path, tmp_path: Path, capsys, order: int
    ) -> None:
        other = shutil.copy(data, tmp_path / "x$_{$ 鳥.jsonl")
        second = tmp_path / "run"
        options = ("--method", "standard,cyclic-matched", "--limit", 2)
        with no_drawing():
            assert main(arguments(model, other, second, *options)) == 0
        capsys.readouterr()
        at = tmp_path / "both"
        folders = [str(whole), str(second)][::order]
        assert main(["report", *folders, "--output-path", str(at)]) == 0
        out, err = capsys.readouterr()
        assert err == ""
        for name in (*METHODS.split(","), "cyclic-matched", "words", "x$_{$ 鳥"):
            assert f"| {name} " in out
        drawn = {path.name for path in at.iterdir()}
        kinds = ("confidence", "reliability")
        wanted = {f"{kind}-{task}.png" for kind in kinds for task in ("words", "x$_{$ 鳥")}
        assert drawn == {"report.md", "accuracy.png", *wanted}
        assert "](confidence-x%24_%7B%24%20%E9%B3%A5.png)" in (at / "report.md").read_text()

    def test_a_figure_that_fails_loses_nothing(
        self, whole: Path, tmp_path: Path, monkeypatch, capsys
    ) -> None:
        def fail(*_: Any) -> None:
            raise ZeroDivisionError("a font")

        monkeypatch.setattr(figures, "make_figures", fail)
        assert main(["report", str(whole), "--output-path", str(tmp_path)]) == 2
        out, err = capsys.readouterr()
        assert "a figure could not be drawn (a font); results and tables are whole" in err
        assert "Paired differences" in out
        assert "Paired differences" in (tmp_path / "report.md").read_text()

    @pytest.mark.parametrize(
        ("where", "value"),
        [
            (("results", "words", "standard", "accuracy"), "80"),
            (("results", "words", "standard", "accuracy"), math.nan),
            (("results", "words", "standard", "nll_interval"), [1]),
            (("timing", "words", "standard", "seconds_per_question"), "x" * 9000),
            (("differences", "words"), [{"a": "standard"}]),
            (("differences", "words", 0, "b"), ["standard"]),
            (("config", "seeds"), None),
            (("config", "experiment"), []),
        ],
    )
    def test_damaged_results_are_one_line(
        self, whole: Path, tmp_path: Path, capsys, where: tuple[Any, ...], value: Any
    ) -> None:
        found = json.loads((whole / "results.json").read_text())
        inner = found
        for key in where[:-1]:
            inner = inner[key]
        inner[where[-1]] = value
        (tmp_path / "results.json").write_text(json.dumps(found))
        assert main(["report", str(tmp_path)]) == 2
        out, err = capsys.readouterr()
        assert (out, err.count("\n")) == ("", 1)
        assert err.startswith(f"minise: {tmp_path / 'results.json'}: ")
        assert "minise eval --resume writes it again" in err
        assert len(err) < 400

    def test_it_says_so_where_it_cannot_write(self, whole: Path, tmp_path: Path, capsys) -> None:
        blocked = tmp_path / "file"
        blocked.write_text("")
        assert main(["report", str(whole), "--output-path", str(blocked)]) == 2
        assert f"{blocked}: could not be written" in capsys.readouterr().err

    def test_an_unfinished_run_is_one_line(self, tmp_path: Path, capsys) -> None:
        assert main(["report", str(tmp_path)]) == 2
        assert "finish the run with minise eval --resume" in capsys.readouterr().err


@pytest.fixture(scope="module")
def balanced(model: Path, data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("balanced")
    options = ("--method", "standard,self-ensemble", "--grouping", "balanced")
    with no_drawing():
        assert main(arguments(model, data, folder, *options)) == 0
    return folder


@pytest.mark.usefixtures("undrawn")
class TestRunsAreToldApart:
    def test_by_the_settings_that_differ(
        self, whole: Path, balanced: Path, tmp_path: Path, capsys
    ) -> None:
        capsys.readouterr()
        assert main(["report", str(whole), str(balanced), "-o", str(tmp_path)]) == 0
        out, text = capsys.readouterr().out, (tmp_path / "report.md").read_text()
        for shown in (out, text):
            assert "| self-ensemble (grouping=random) " in shown
            assert "| self-ensemble (grouping=balanced) " in shown
        assert (
            "  Settings: standard: preset=paper; self-ensemble (grouping=balanced): group" in text
        )
        assert "group_size=2, trials=3, grouping=balanced, null_option=true, preset=paper" in text

    def test_by_their_labels(
        self, model: Path, whole: Path, balanced: Path, tmp_path: Path, capsys
    ) -> None:
        folders = [str(whole), str(balanced)]
        assert main(["report", *folders, "--label", "drawn,chosen", "-o", str(tmp_path)]) == 0
        text = (tmp_path / "report.md").read_text()
        for label in ("drawn", "chosen"):
            assert f"{model.name}, {label}\n\n| task " in text
        assert main(["report", *folders, "--label", "one", "-o", str(tmp_path)]) == 2
        assert "--label names 1 runs, and there are 2 folders" in capsys.readouterr().err

    def test_a_run_keeps_its_label(self, model: Path, data: Path, tmp_path: Path, capsys) -> None:
        options = ("--method", "standard", "--limit", 2, "--label", "a first try")
        assert main(arguments(model, data, tmp_path / "run", *options)) == 0
        assert f"{model.name}, a first try, words\n" in capsys.readouterr().out

    def test_questions_that_both_asked_are_compared(
        self, model: Path, whole: Path, balanced: Path, tmp_path: Path, capsys
    ) -> None:
        capsys.readouterr()
        folders = [str(whole), str(balanced)]
        assert main(["report", *folders, "-o", str(tmp_path), "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert [len(run["results"]["words"]) for run in found["runs"]] == [4, 2]
        name = model.name
        names = [tuple(d[x].removeprefix(f"{name}: ") for x in "ab") for d in found["differences"]]
        # standard answered alike in both; cyclic and vector-scaling are in the first alone.
        assert names == [
            ("standard", "cyclic"),
            ("standard", "vector-scaling"),
            ("self-ensemble (grouping=balanced)", "self-ensemble (grouping=random)"),
            ("self-ensemble (grouping=balanced)", "cyclic"),
            ("self-ensemble (grouping=balanced)", "vector-scaling"),
        ]
        ours = found["differences"][2]
        accuracy = [run["results"]["words"]["self-ensemble"]["accuracy"] for run in found["runs"]]
        assert ours["accuracy"] == pytest.approx(accuracy[1] - accuracy[0])
        assert (ours["task"], ours["questions"]) == ("words", 30)
        assert "Paired differences between runs" in (tmp_path / "report.md").read_text()

    def test_other_questions_are_not(
        self, model: Path, data: Path, whole: Path, tmp_path: Path, capsys
    ) -> None:
        rows = [json.loads(line) for line in data.read_text().splitlines()]
        for row in rows[:10]:
            row["question"] = f"Not {row['question']}"
        changed = tmp_path / "words.jsonl"
        changed.write_text("".join(json.dumps(row) + "\n" for row in rows))
        folder = tmp_path / "changed"
        assert main(arguments(model, changed, folder, "--method", "cyclic", "--trials", 2)) == 0
        capsys.readouterr()
        assert main(["report", str(whole), str(folder), "-o", str(tmp_path), "--json"]) == 0
        found = json.loads(capsys.readouterr().out)["differences"]
        # The twenty that are the same were answered alike by cyclic in both.
        assert {d["questions"] for d in found} == {20}
        assert {d["a"].split(": ")[1] for d in found} == {"cyclic"}
        assert not any(d["b"].endswith("cyclic") for d in found)


@pytest.mark.usefixtures("undrawn")
class TestOneRunHoldsVariants:
    def test_each_has_its_settings_in_its_name(
        self, model: Path, data: Path, tmp_path: Path, capsys
    ) -> None:
        named = "self-ensemble,self-ensemble(grouping=balanced, trials=4),standard"
        assert main(arguments(model, data, tmp_path, "--method", named, "--limit", 3)) == 0
        found = json.loads((tmp_path / "results.json").read_text())
        settings = {name: cell["settings"] for name, cell in found["results"]["words"].items()}
        other = "self-ensemble(grouping=balanced,trials=4)"
        assert list(settings) == ["self-ensemble", other, "standard"]
        assert (settings[other]["trials"], settings[other]["grouping"]) == (4, "balanced")
        assert (settings["self-ensemble"]["trials"], settings[other]["group_size"]) == (3, 2)
        assert found["config"]["as_in_paper"] is False
        assert (tmp_path / f"samples-words-{other}.jsonl").exists()
        assert f"| {other} |" in capsys.readouterr().out
        again = ["report", str(tmp_path), "--differences", "self-ensemble", other]
        assert main(again) == 0


@pytest.mark.usefixtures("undrawn")
class TestATerminal:
    @pytest.mark.parametrize("width", [60, 80, 100, 200])
    def test_a_table_is_no_wider(
        self, whole: Path, tmp_path: Path, capsys, monkeypatch, width: int
    ) -> None:
        monkeypatch.setenv("COLUMNS", str(width))
        assert main(["report", str(whole), "-o", str(tmp_path)]) == 0
        out = capsys.readouterr().out
        lines = [line for line in out.splitlines() if line.startswith("|")]
        assert max(map(len, lines)) <= width
        assert {"accuracy", "NLL"} <= {text.strip() for text in lines[0].split("|")}
        assert ("(more in report.md: " in out) == (width < 200)

    def test_the_file_holds_everything(self, whole: Path, tmp_path: Path, monkeypatch) -> None:
        monkeypatch.setenv("COLUMNS", "60")
        assert main(["report", str(whole), "-o", str(tmp_path)]) == 0
        text = (tmp_path / "report.md").read_text()
        for column in ("task", "under", "over", "tokens", "Brier", "ECE", "AUROC", "peak MiB"):
            assert f"| {column} " in text
