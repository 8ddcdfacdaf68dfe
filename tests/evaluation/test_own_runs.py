"""Runs on one's own questions: what their folder holds, a batch without answers, the table for a
spreadsheet, and the questions on which methods disagree."""

from __future__ import annotations

import csv
import io
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from minise.commands.cli import main
from tests.support.commands import assert_one_line, run
from tests.support.rows import write
from tests.support.runs import no_drawing

for module in ("scipy", "sklearn", "matplotlib", "filelock"):
    pytest.importorskip(module)
pytestmark = pytest.mark.usefixtures("undrawn")

ROWS = [
    {"id": 1, "question": "=1+1?\nSay.", "choices": ["-4", "+b", "@c", "plain, é"]},
    {"id": 2, "question": "Which | flies <b>?", "choices": ["wren", "trout", "oak", "elm"]},
    {"id": "-x", "question": "Which swims?", "choices": ["wren", "trout", "oak"]},
]


def answered() -> list[dict[str, Any]]:
    return [{**row, "answer": i} for i, row in enumerate(ROWS)]


def command(folder: Path, model: Path, rows: list[dict[str, Any]], *options: object) -> list[str]:
    """Evaluate rows by two methods in `folder`/run."""
    path = write(folder / "mine.jsonl", rows)
    fixed = ("--model", model, "--output-path", folder / "run", "--trials", 2)
    parts = ("eval", "--task", path, "--method", "standard,self-ensemble", *fixed, *options)
    return [str(part) for part in parts]


@pytest.fixture(scope="module")
def finished(llama_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run on rows with answers. Copy it before changing it."""
    folder = tmp_path_factory.mktemp("finished")
    with no_drawing():
        assert main(command(folder, llama_folder, answered())) == 0
    return folder / "run"


@pytest.fixture
def evaluate(capsys, llama_folder: Path, tmp_path: Path) -> Any:
    """Evaluate rows in a folder `run`: stdout and stderr."""

    def run_it(rows: list[dict[str, Any]], *options: object) -> tuple[str, str]:
        status, out, err = run(capsys, *command(tmp_path, llama_folder, rows, *options))
        assert status == 0, err
        return out, err

    return run_it


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


class TestTheFolder:
    def test_samples_carry_the_text_and_predictions_open_in_a_spreadsheet(
        self, evaluate, tmp_path: Path
    ) -> None:
        out, _ = evaluate(answered())
        path = tmp_path / "run" / "predictions-mine.csv"
        assert f"written in {path.parent}:\n  tables: report.md\n  figures: accuracy.png, " in out
        assert f"  predictions, for a spreadsheet: {path.name}\n" in out
        for name in ("standard", "self-ensemble"):
            for sample, row in zip(
                lines(tmp_path / "run" / f"samples-mine-{name}.jsonl"), answered(), strict=True
            ):
                text = {"question": row["question"], "choices": row["choices"]}
                assert sample["text"] == {**text, "answer": row["choices"][row["answer"]]}
        content = path.read_bytes()
        assert content.startswith(b"\xef\xbb\xbfrow,id,question,answer,standard,")
        table = list(csv.DictReader(io.StringIO(content.decode("utf-8-sig"), newline="")))
        each = ["", ": letter", ": probability", ": right", ": tokens"]
        names = [name + more for name in ("standard", "self-ensemble") for more in each]
        own = ["choices", "file: answer"]  # the other columns of the file are as they are here
        assert list(table[0]) == ["row", "id", "question", "answer", *names, *own]
        assert [table[1][name] for name in own] == ['["wren", "trout", "oak", "elm"]', "1"]
        # What a spreadsheet would run as a formula is a text; a negative number stays one.
        assert [row["id"] for row in table] == ["1", "2", "'-x"]
        assert [row["question"] for row in table] == ["'=1+1?\nSay.", *(
            row["question"] for row in ROWS[1:]
        )]  # fmt: skip
        assert [row["answer"] for row in table] == ["-4", "trout", "oak"]
        guarded = [["-4", "'+b", "'@c", "plain, é"], *(row["choices"] for row in ROWS[1:])]
        for name in ("standard", "self-ensemble"):
            samples = lines(tmp_path / "run" / f"samples-mine-{name}.jsonl")
            for row, sample, choices in zip(table, samples, guarded, strict=True):
                best = sample["prediction"]
                assert row[name] == choices[best]
                assert row[f"{name}: probability"] == f"{sample['probabilities'][best]:.4f}"
                right = best == sample["answer"]
                assert row[f"{name}: right"] == ("right" if right else "wrong")

    def test_columns_that_are_not_read_are_kept_beside_the_predictions(
        self, evaluate, tmp_path: Path
    ) -> None:
        """Under the names of the file, whatever --columns calls them."""
        rows = [{"Nr.": 7 + i, "Topic": "birds", **row} for i, row in enumerate(answered())]
        _, err = evaluate(rows, "--columns", "id=Nr.")
        assert '"Topic"' in err
        text = (tmp_path / "run" / "predictions-mine.csv").read_text(encoding="utf-8-sig")
        for number, row in enumerate(csv.DictReader(io.StringIO(text, newline=""))):
            assert (row["id"], row["Nr."], row["Topic"]) == (
                str(7 + number),
                str(7 + number),
                "birds",
            )
            assert row["file: id"].lstrip("'") == str(ROWS[number]["id"])

    def test_secret_data_leaves_no_text(self, evaluate, tmp_path: Path) -> None:
        bad = {"question": "BAD", "choices": ["SECRET", "SECRET"], "answer": 0}
        rows = [{**row, "note": "SECRET"} for row in answered()]
        evaluate([*rows, bad], "--no-text", "--skip-bad-rows")
        for path in (tmp_path / "run").glob("*"):
            content = path.read_bytes()
            for word in (b"swims", b"trout", b"SECRET"):
                assert word not in content, path
        table = (tmp_path / "run" / "predictions-mine.csv").read_text(encoding="utf-8-sig")
        assert table.splitlines()[1].startswith("1,1,,A,")

    def test_a_run_without_text_can_be_resumed_with_text(
        self, evaluate, finished: Path, tmp_path: Path
    ) -> None:
        """As one of an earlier version does, whose samples have none."""
        shutil.copytree(finished, tmp_path / "run")
        paths = sorted((tmp_path / "run").glob("samples-*.jsonl"))
        whole = [lines(path) for path in paths]
        results = json.loads((tmp_path / "run" / "results.json").read_text())["results"]
        for path, samples in zip(paths, whole, strict=True):
            older = [{k: v for k, v in s.items() if k != "text"} for s in samples[:2]]
            path.write_text("".join(json.dumps(s) + "\n" for s in older))
        evaluate(answered(), "--resume")
        for path, samples in zip(paths, whole, strict=True):
            assert ["text" in sample for sample in lines(path)] == [False, False, True]
            assert [s["scores"] for s in lines(path)] == [s["scores"] for s in samples]
        assert json.loads((tmp_path / "run" / "results.json").read_text())["results"] == results

    def test_without_answers_there_are_predictions_and_nothing_is_scored(
        self, evaluate, capsys, tmp_path: Path
    ) -> None:
        out, err = evaluate(ROWS)
        folder = tmp_path / "run"
        path = tmp_path / "mine.jsonl"
        assert err == f"minise: {path}: has no answers, so nothing can be scored\n"
        words = " ".join(out.split())  # its lines are no longer than the terminal
        assert "mine: 3 questions without answers, so nothing is scored." in words
        assert "accuracy" not in out
        samples = lines(folder / "samples-mine-standard.jsonl")
        assert [sample["answer"] for sample in samples] == [None] * 3
        table = (folder / "predictions-mine.csv").read_text(encoding="utf-8-sig")
        for row in csv.DictReader(io.StringIO(table, newline="")):
            assert row["answer"] == row["standard: right"] == ""
            assert row["standard"]
        results = json.loads((folder / "results.json").read_text())
        assert results["results"] == results["differences"] == results["timing"] == {}
        assert results["config"]["tasks"]["mine"]["answered"] is False
        evaluate(ROWS, "--resume")
        status, again, _ = run(capsys, "report", folder)
        assert status == 0
        assert again == out

    def test_without_answers_fitted_methods_are_left_out_and_experiments_refused(
        self, evaluate, capsys, llama_folder: Path, tmp_path: Path
    ) -> None:
        out, err = evaluate(ROWS[:2], "--method", "standard,dirichlet")
        assert "dirichlet is fitted on answers, and these questions have none" in err
        assert not (tmp_path / "run" / "samples-mine-dirichlet.jsonl").exists()
        fixed = ("--task", tmp_path / "mine.jsonl", "--model", llama_folder)
        experiment = ("--experiment", "main", "--output-path", tmp_path / "other")
        status, out, err = run(capsys, "eval", *fixed, *experiment)
        assert (status, out) == (2, "")
        message = "minise: an experiment needs answers; without them give --method"
        assert err.splitlines()[-1] == message
        assert not (tmp_path / "other").exists()


class TestDifferences:
    def make(self, folder: Path, name: str, predictions: list[int], **changes: Any) -> None:
        """A folder's samples of one method, with what it predicts at 60%."""
        with (folder / f"samples-mine-{name}.jsonl").open("a", encoding="utf-8") as file:
            for row, prediction in zip(answered(), predictions, strict=True):
                K = len(row["choices"])
                p = [0.6 if i == prediction else 0.4 / (K - 1) for i in range(K)]
                text = {name: row[name] for name in ("question", "choices")}
                sample = {
                    "id": str(row["id"]), "seed": 0, "question_hash": f"h{row['id']}",
                    "answer": row["answer"], "prediction": prediction, "probabilities": p,
                    "scores": p, "tokens": 9, "text": {**text, "answer": "x"}, **changes,
                }  # fmt: skip
                file.write(json.dumps(sample) + "\n")

    @pytest.fixture
    def folder(self, finished: Path, tmp_path: Path) -> Path:
        folder = shutil.copytree(finished, tmp_path / "run")
        for path in folder.glob("samples-*"):
            path.unlink()
        self.make(folder, "standard", [0, 0, 2])
        self.make(folder, "self-ensemble", [3, 1, 2])
        return folder

    def test_differences_are_listed_for_a_terminal_and_in_markdown(
        self, capsys, folder: Path
    ) -> None:
        arguments = ("report", folder, "--differences", "standard", "self-ensemble")
        status, out, err = run(capsys, *arguments)
        assert (status, err) == (0, "")
        title = "mine: standard and self-ensemble disagree on 2 of 3 questions; right there: "
        title += "standard 1, self-ensemble 1\n"
        assert out == (
            f"""{title}
1  =1+1? Say.
    answer         -4
    standard       -4 (60.0%), right
    self-ensemble  plain, é (60.0%), wrong

2  Which | flies <b>?
    answer         trout
    standard       wren (60.0%), wrong
    self-ensemble  trout (60.0%), right

written: {folder / "differences.md"}
"""
        )
        assert (folder / "differences.md").read_text(encoding="utf-8") == (
            f"""{title}
| id | question | answer | standard | self-ensemble |
| --- | --- | --- | --- | --- |
| 1 | =1+1? Say. | -4 | -4 (60.0%), right | plain, é (60.0%), wrong |
| 2 | Which \\| flies &lt;b>? | trout | wren (60.0%), wrong | trout (60.0%), right |
"""
        )
        _, out, _ = run(capsys, *arguments, "--json")
        [report] = json.loads(out)
        assert (report["task"], len(report["questions"])) == ("mine", 2)
        assert report["questions"][1]["self-ensemble"] == "trout (60.0%), right"

    def test_methods_that_agree_have_no_list_and_a_missing_method_is_refused(
        self, capsys, folder: Path
    ) -> None:
        self.make(folder, "twin", [0, 0, 2])
        _, out, _ = run(capsys, "report", folder, "--differences", "standard", "twin")
        assert out.startswith("mine: standard and twin disagree on 0 of 3 questions\n")
        refused = run(capsys, "report", folder, "--differences", "standard", "cyclic")
        methods = "the methods are standard, self-ensemble"
        assert_one_line(*refused, ['no task has answers of both "standard" and "cyclic"', methods])

    def test_several_folders_are_compared_inside_each_or_with_each_other(
        self, capsys, folder: Path, tmp_path: Path
    ) -> None:
        other = tmp_path / "other"
        shutil.copytree(folder, other)
        arguments = ("report", folder, other, "--differences", "standard")
        _, out, _ = run(capsys, *arguments, "self-ensemble")
        model = json.loads((folder / "results.json").read_text())["config"]["model"]
        title = f"{Path(model).name}, mine: standard and self-ensemble disagree on 2 of 3"
        assert out.count(title) == 2
        self.make(other, "cyclic", [0, 1, 1])
        _, out, _ = run(capsys, *arguments, "cyclic")
        assert out.startswith("mine: standard and cyclic disagree on 2 of 3 questions; right there")

    def test_samples_of_other_questions_are_not_compared(self, capsys, folder: Path) -> None:
        self.make(folder, "other", [0, 0, 2], question_hash="another")
        refused = run(capsys, "report", folder, "--differences", "standard", "other")
        assert_one_line(*refused, ['mine: question "1" is not the same for both'])

    def test_without_text_choices_are_letters(self, capsys, folder: Path) -> None:
        self.make(folder, "bare-a", [0, 1, 2], text=None)
        self.make(folder, "bare-b", [0, 1, 1], text=None)
        _, out, _ = run(capsys, "report", folder, "--differences", "bare-a", "bare-b")
        assert "\n-x\n    answer  C\n    bare-a  C (60.0%), right\n    bare-b  B (60.0%), wr" in out
