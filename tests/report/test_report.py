"""`minise report`: the report of finished runs, and how it names runs that differ in settings."""

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
    def test_a_report_is_redrawn_without_a_model(self, whole: Path, tmp_path: Path, capsys) -> None:
        assert main(["report", str(whole), "--output-path", str(tmp_path)]) == 0
        out = capsys.readouterr().out
        results = json.loads((whole / "results.json").read_text())
        accuracy = results["results"]["words"]["self-ensemble"]["accuracy"]
        assert f"{100 * accuracy:.1f} [" in out
        text = (tmp_path / "report.md").read_text()
        assert text.split("\n\n")[0] == out.split(", words\n\n")[0]
        assert "![confidence-words](confidence-words.png)" in text
        assert (tmp_path / "confidence-words.png").read_bytes()[:4] == b"\x89PNG"

    @pytest.mark.parametrize("order", [1, -1])
    def test_runs_of_different_tasks_and_methods_share_a_report(
        self, model: Path, data: Path, whole: Path, tmp_path: Path, capsys, order: int
    ) -> None:
        other = shutil.copy(data, tmp_path / "x$_{$ 鳥.jsonl")
        second = tmp_path / "run"
        options = ("--method", "standard,cyclic", "--limit", 2)
        with no_drawing():
            assert main(arguments(model, other, second, *options)) == 0
        capsys.readouterr()
        at = tmp_path / "both"
        folders = [str(whole), str(second)][::order]
        assert main(["report", *folders, "--output-path", str(at)]) == 0
        out, err = capsys.readouterr()
        assert err == ""
        for name in (*METHODS.split(","), "cyclic", "words", "x$_{$ 鳥"):
            assert f"| {name} " in out
        drawn = {path.name for path in at.iterdir()}
        kinds = ("confidence", "reliability")
        of_tasks = {f"{kind}-{task}.png" for kind in kinds for task in ("words", "x$_{$ 鳥")}
        assert drawn == {"report.md", "accuracy.png", *of_tasks}
        assert "](confidence-x%24_%7B%24%20%E9%B3%A5.png)" in (at / "report.md").read_text()

    def test_a_figure_that_fails_loses_no_table(
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
        results = json.loads((whole / "results.json").read_text())
        inner = results
        for key in where[:-1]:
            inner = inner[key]
        inner[where[-1]] = value
        (tmp_path / "results.json").write_text(json.dumps(results))
        assert main(["report", str(tmp_path)]) == 2
        out, err = capsys.readouterr()
        assert (out, err.count("\n")) == ("", 1)
        assert err.startswith(f"minise: {tmp_path / 'results.json'}: ")
        assert "minise eval --resume writes it again" in err
        assert len(err) < 400

    def test_a_folder_that_cannot_be_written_is_named(
        self, whole: Path, tmp_path: Path, capsys
    ) -> None:
        blocked = tmp_path / "file"
        blocked.write_text("")
        assert main(["report", str(whole), "--output-path", str(blocked)]) == 2
        assert f"{blocked}: could not be written" in capsys.readouterr().err

    def test_an_unfinished_run_is_one_line(self, tmp_path: Path, capsys) -> None:
        assert main(["report", str(tmp_path)]) == 2
        assert "finish the run with minise eval --resume" in capsys.readouterr().err

    def test_a_mistyped_folder_is_no_unfinished_run(self, tmp_path: Path, capsys) -> None:
        assert main(["report", str(tmp_path / "none")]) == 2
        assert capsys.readouterr().err == f"minise: {tmp_path / 'none'}: no such folder\n"


@pytest.mark.usefixtures("undrawn")
class TestRunsAreNamed:
    def test_by_the_settings_that_differ(
        self, whole: Path, independent: Path, tmp_path: Path, capsys
    ) -> None:
        capsys.readouterr()
        assert main(["report", str(whole), str(independent), "-o", str(tmp_path)]) == 0
        out, text = capsys.readouterr().out, (tmp_path / "report.md").read_text()
        for shown in (out, text):
            assert "| self-ensemble (grouping=random) " in shown
            assert "| self-ensemble (grouping=independent) " in shown
        assert (
            "  Settings: standard: preset=paper; self-ensemble (grouping=independent): group"
            in text
        )
        assert (
            "group_size=2, trials=3, grouping=independent, null_option=true, preset=paper" in text
        )

    def test_by_their_labels(
        self, model: Path, whole: Path, independent: Path, tmp_path: Path, capsys
    ) -> None:
        folders = [str(whole), str(independent)]
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


@pytest.mark.usefixtures("undrawn")
class TestOneRunHoldsVariants:
    def test_each_variant_has_its_settings_in_its_name(
        self, model: Path, data: Path, tmp_path: Path, capsys
    ) -> None:
        named = "self-ensemble,self-ensemble(grouping=independent, trials=4),standard"
        assert main(arguments(model, data, tmp_path, "--method", named, "--limit", 3)) == 0
        results = json.loads((tmp_path / "results.json").read_text())
        settings = {name: cell["settings"] for name, cell in results["results"]["words"].items()}
        other = "self-ensemble(grouping=independent,trials=4)"
        assert list(settings) == ["self-ensemble", other, "standard"]
        assert (settings[other]["trials"], settings[other]["grouping"]) == (4, "independent")
        assert (settings["self-ensemble"]["trials"], settings[other]["group_size"]) == (3, 2)
        assert results["config"]["as_in_paper"] is False
        assert (tmp_path / f"samples-words-{other}.jsonl").exists()
        assert f"| {other} |" in capsys.readouterr().out
        again = ["report", str(tmp_path), "--differences", "self-ensemble", other]
        assert main(again) == 0


@pytest.mark.usefixtures("undrawn")
class TestATerminal:
    @pytest.mark.parametrize("width", [60, 80, 100, 200])
    def test_a_table_is_not_wider_than_the_terminal(
        self, whole: Path, tmp_path: Path, capsys, monkeypatch, width: int
    ) -> None:
        monkeypatch.setenv("COLUMNS", str(width))
        assert main(["report", str(whole), "-o", str(tmp_path)]) == 0
        out = capsys.readouterr().out
        lines = [line for line in out.splitlines() if line.startswith("|")]
        assert max(map(len, lines)) <= width
        assert {"accuracy", "NLL"} <= {text.strip() for text in lines[0].split("|")}
        assert ("(more in report.md: " in out) == (width < 200)

    def test_the_file_has_all_columns(self, whole: Path, tmp_path: Path, monkeypatch) -> None:
        monkeypatch.setenv("COLUMNS", "60")
        assert main(["report", str(whole), "-o", str(tmp_path)]) == 0
        text = (tmp_path / "report.md").read_text()
        for column in ("task", "under", "over", "tokens", "Brier", "ECE", "AUROC", "peak MiB"):
            assert f"| {column} " in text
