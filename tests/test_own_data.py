"""One's own questions: the shapes in which people keep them, a batch without answers, the table for
a spreadsheet, and the questions on which methods disagree."""

from __future__ import annotations

import csv
import io
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from minise import InputError, Question
from minise.question_file import read_question
from tests.commands import assert_one_line, run
from tests.rows import load, refusal, write

CITIES = ["Kingston", "Ottawa", "Toronto"]
CAPITAL = Question("Capital of Canada?", CITIES, id="7", answer=1)
ROW = "7{0}Capital of Canada?{0}Kingston{0}Ottawa{0}Toronto{0}{1}\n"


def give_stdin(monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))


class TestShapes:
    @pytest.mark.parametrize(
        "columns",
        [
            ["A", "B", "C"],
            ["a", "b", "c"],
            ["choice_1", "choice_2", "choice_3"],
            ["Choice 1", "Choice 2", "Choice 3"],
            ["option1", "option2", "option3"],
            ["option_a", "option_b", "option_c"],
            ["Option A", "Option B", "Option C"],
            ["optionA", "optionB", "optionC"],
        ],
        ids=lambda columns: columns[0],
    )
    @pytest.mark.parametrize("names", [("id", "question", "answer"), ("ID", "Question", "Answer ")])
    def test_each_choice_may_have_a_column(
        self, tmp_path: Path, columns: list[str], names: tuple[str, str, str]
    ) -> None:
        header = ",".join([*names[:2], *columns, names[2]])
        path = tmp_path / "mine.csv"
        path.write_text(f"{header}\n{ROW.format(',', 'B')}")
        assert load(path).questions == [CAPITAL]
        assert read_question(path) == CAPITAL

    def test_another_column_of_one_letter_is_no_choice(self, tmp_path: Path) -> None:
        path = tmp_path / "mine.csv"
        path.write_text(
            "n,id,question,choice_1,choice_2,choice_3,answer\n9," + ROW.format(",", "B")
        )
        assert load(path).questions == [CAPITAL]

    def test_the_last_choices_may_be_blank(self, tmp_path: Path) -> None:
        path = tmp_path / "mine.csv"
        path.write_text("question,A,B,C,D,answer\nUp?,yes,no,, ,B\n")
        assert load(path).questions == [Question("Up?", ["yes", "no"], answer=1)]

    @pytest.mark.parametrize("kind", ["jsonl", "json", "parquet"])
    def test_so_it_may_in_every_kind_of_file(self, tmp_path: Path, kind: str) -> None:
        row = {"id": 7, "question": CAPITAL.text, "A": CITIES[0], "B": CITIES[1], "C": CITIES[2]}
        fewer = {"id": 8, "question": "Up?", "A": "yes", "B": "no", "C": None, "answer": "A"}
        path = write(tmp_path / f"mine.{kind}", [{**row, "answer": "Ottawa"}, fewer])
        assert load(path).questions == [CAPITAL, Question("Up?", ["yes", "no"], "8", 0)]

    def test_a_cell_of_csv_may_hold_a_list(self, tmp_path: Path) -> None:
        path = tmp_path / "mine.csv"
        cell = json.dumps(CITIES).replace('"', '""')
        path.write_text(f'id,question,choices,answer\n7,Capital of Canada?,"{cell}",B\n')
        assert load(path).questions == [CAPITAL]
        path.write_text("id,question,choices,answer\n7,Capital of Canada?,[Ottawa|Rome],B\n")
        assert 'row 1: choices is "[Ottawa|Rome]"; it must be a list in JSON' in refusal(str(path))

    @pytest.mark.parametrize(("mark", "kind"), [(",", "csv"), (";", "csv"), ("\t", "csv")])
    def test_a_comma_a_semicolon_or_a_tab_separates_cells(
        self, tmp_path: Path, mark: str, kind: str
    ) -> None:
        path = tmp_path / f"mine.{kind}"
        header = mark.join(["id", "question", "A", "B", "C", '"answer, or; none"', "answer"])
        path.write_text(f"{header}\n{ROW.format(mark, mark + 'B')}")
        assert load(path).questions == [CAPITAL]
        path = path.rename(tmp_path / "mine.tsv")
        assert load(path).questions == [CAPITAL]


class TestAnswers:
    @pytest.mark.parametrize(
        "answer", ["B", "b", "(B)", "B.", "B)", "[B]", " Ottawa ", "ottawa", "1", 1]
    )
    def test_a_letter_a_text_or_an_index_from_0(self, tmp_path: Path, answer: str | int) -> None:
        row = {"id": "7", "question": CAPITAL.text, "choices": CITIES, "answer": answer}
        path = write(tmp_path / "mine.json", [row])
        assert load(path).questions == [CAPITAL]
        assert read_question(path) == CAPITAL

    @pytest.mark.parametrize(
        ("choices", "answer", "reason"),
        [
            (["a", "b", "c", "d"], "E", 'answer "E" is not one of A-D'),
            (["a", "b"], "(C)", 'answer "(C)" is not one of A-B'),
            (
                ["wren", "oak"],
                "fir",
                'answer "fir" is no choice; write a letter A-B, the choice\'s text, or an index '
                "from 0 to 1",
            ),
            (["wren", "oak"], "5", "answer 5 is no choice; give an index from 0 to 1"),
            (
                ["B", "A"],
                "A",
                'answer "A" is a letter and the text of choice 2; write the index, counted from 0',
            ),
            (
                ["3", "1", "4"],
                "1",
                None,  # both ways the second
            ),
            (
                ["3", "4", "1"],
                "1",
                'answer "1" is an index counted from 0 and the text of choice 3; write the letter',
            ),
            (["Ion", "ion"], "ION", "the text of choice 1 and the text of choice 2"),
            (["oak", "oak", "fir"], "oak", 'two choices are "oak", the right one'),
        ],
    )
    def test_what_is_wrong_with_one_is_said_and_two_meanings_are_refused(
        self, tmp_path: Path, choices: list[str], answer: str, reason: str | None
    ) -> None:
        rows = [
            {"question": "First?", "choices": ["x", "y"], "answer": 0},
            {"question": "Which?", "choices": choices, "answer": answer},
        ]
        path = write(tmp_path / "mine.csv", rows)
        if reason is None:
            assert load(path).questions[1].answer == 1
        else:
            message = refusal(str(path))
            assert message.startswith(f"{path}, row 2: ")
            assert reason in message

    def test_a_number_is_an_index_where_the_file_says_that_it_is_a_number(
        self, tmp_path: Path
    ) -> None:
        row = {"question": "1 + 2?", "choices": ["3", "4", "1"], "answer": 1}
        zero = {"question": "1 + 1?", "choices": ["2", "3"], "answer": 0}
        assert load(write(tmp_path / "mine.json", [row, zero])).questions[0].answer == 1

    def test_answers_that_must_be_counted_from_1_are_refused(self, tmp_path: Path) -> None:
        rows = [{"question": f"{i}?", "choices": ["x", "y", "z"], "answer": i} for i in (1, 2, 3)]
        for kind in ("csv", "json"):
            path = write(tmp_path / f"mine.{kind}", rows)
            for skip in (False, True):
                assert refusal(str(path), skip_bad_rows=skip) == (
                    f"{path}: answers seem to be counted from 1 (row 3: answer 3 of 3 choices, "
                    "and no answer is 0); count from 0"
                )
        path = write(tmp_path / "mine.json", [*rows, {**rows[0], "answer": 0, "id": "zero"}])
        assert "row 3: answer 3 is no choice" in refusal(str(path))

    def test_where_none_of_20_answers_is_0_one_line_says_so(self, tmp_path: Path) -> None:
        rows = [{"question": f"{i}?", "choices": ["x", "y", "z"], "answer": 1} for i in range(20)]
        path = write(tmp_path / "mine.csv", rows)
        said = "none of 20 answers is 0; if they are counted from 1, count from 0"
        assert load(path).notices == [f"{path}: {said}"]
        assert load(write(path, rows[:19])).notices == []
        assert load(write(path, [*rows, {**rows[0], "question": "?", "answer": 0}])).notices == []
        letters = [{**row, "answer": "B"} for row in rows]
        assert load(write(path, letters)).notices == []

    def test_all_may_be_absent_but_not_some(self, tmp_path: Path) -> None:
        rows = [{"question": f"{i}?", "choices": ["x", "y"]} for i in range(3)]
        path = write(tmp_path / "mine.csv", rows)
        task = load(path)
        assert [question.answer for question in task.questions] == [None] * 3
        assert task.notices == [f"{path}: has no answers, so nothing can be scored"]
        assert load(write(path, [{**row, "answer": ""} for row in rows])).questions == (
            task.questions
        )
        write(path, [{**rows[0], "answer": "A"}, *rows[1:]])
        assert "row 2: answer is empty (2 bad rows" in refusal(str(path))
        write(path, rows)
        assert "has no answers, so choices cannot be left out" in refusal(str(path), cut_to=[2])


class TestStandardInput:
    @pytest.mark.parametrize(
        "content",
        [
            b'{"id": 7, "question": "Capital of Canada?", "choices": %s, "answer": "B"}',
            b'[\n{"id": 7, "question": "Capital of Canada?", "choices": %s, "answer": 1}]',
            b'{"id": 7,\n"question": "Capital of Canada?", "choices": %s, "answer": 1}\n',
        ],
    )
    def test_its_kind_is_that_of_its_content(self, monkeypatch, content: bytes) -> None:
        give_stdin(monkeypatch, content % json.dumps(CITIES).encode())
        assert read_question(Path("-")) == CAPITAL
        task = load(Path("-"))
        assert (task.name, task.questions, task.source["file"]) == ("stdin", [CAPITAL], "-")

    def test_it_may_be_csv_lines_of_json_or_parquet(self, monkeypatch, tmp_path: Path) -> None:
        give_stdin(monkeypatch, b"id;question;A;B;C;answer\n" + ROW.format(";", "B").encode())
        assert read_question(Path("-")) == CAPITAL
        rows = [{"question": f"{i}?", "choices": CITIES, "answer": i} for i in range(3)]
        for kind in ("jsonl", "parquet"):
            give_stdin(monkeypatch, write(tmp_path / f"mine.{kind}", rows).read_bytes())
            assert [question.answer for question in load(Path("-")).questions] == [0, 1, 2]

    def test_what_is_wrong_with_it_is_one_line(self, monkeypatch) -> None:
        for content, said in [
            (b"", "standard input: is empty"),
            (b"[{}, {}]", "standard input: holds 2 rows; give one question, or ask all of them"),
            (b"{", "standard input: not readable as JSON"),
        ]:
            give_stdin(monkeypatch, content)
            with pytest.raises(InputError) as caught:
                read_question(Path("-"))
            assert str(caught.value).startswith(said)

    def test_ask_reads_it(self, capsys, monkeypatch, llama_folder: Path) -> None:
        give_stdin(monkeypatch, b"question,A,B,remark\nUp?,yes,no,easy\n")
        status, out, _ = run(
            capsys, "ask", "--file", "-", "--json", "--trials", 2, "--model", llama_folder
        )
        assert status == 0
        assert '"Up?"' in out


ROWS = [
    {"id": 1, "question": "=1+1?\nSay.", "choices": ["-4", "+b", "@c", "plain, é"]},
    {"id": 2, "question": "Which | flies <b>?", "choices": ["wren", "trout", "oak", "elm"]},
    {"id": "-x", "question": "Which swims?", "choices": ["wren", "trout", "oak"]},
]


@pytest.fixture
def evaluate(capsys, llama_folder: Path, tmp_path: Path) -> Any:
    """Evaluate rows by two methods in a folder `run`: stdout and stderr."""
    for module in ("scipy", "sklearn", "matplotlib", "filelock"):
        pytest.importorskip(module)

    def run_it(rows: list[dict[str, Any]], *options: object) -> tuple[str, str]:
        path = write(tmp_path / "mine.jsonl", rows)
        fixed = ("--model", llama_folder, "--output-path", tmp_path / "run", "--trials", 2)
        methods = ("--method", "standard,self-ensemble")
        status, out, err = run(capsys, "eval", "--task", path, *methods, *fixed, *options)
        assert status == 0, err
        return out, err

    return run_it


def answered() -> list[dict[str, Any]]:
    return [{**row, "answer": i} for i, row in enumerate(ROWS)]


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


class TestTheFolder:
    def test_samples_carry_the_text_and_predictions_open_in_a_spreadsheet(
        self, evaluate, tmp_path: Path
    ) -> None:
        out, _ = evaluate(answered())
        path = tmp_path / "run" / "predictions-mine.csv"
        assert f"predictions, for a spreadsheet: {path}\n" in out
        for name in ("standard", "self-ensemble"):
            for sample, row in zip(
                lines(tmp_path / "run" / f"samples-mine-{name}.jsonl"), answered(), strict=True
            ):
                text = {"question": row["question"], "choices": row["choices"]}
                assert sample["text"] == {**text, "answer": row["choices"][row["answer"]]}
        content = path.read_bytes()
        assert content.startswith(b"\xef\xbb\xbfid,question,answer,standard,")
        table = list(csv.DictReader(io.StringIO(content.decode("utf-8-sig"), newline="")))
        each = ["", ": probability", ": right"]
        names = [name + more for name in ("standard", "self-ensemble") for more in each]
        assert list(table[0]) == ["id", "question", "answer", *names]
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

    def test_secret_data_leaves_no_text(self, evaluate, tmp_path: Path) -> None:
        bad = {"question": "BAD", "choices": ["SECRET", "SECRET"], "answer": 0}
        evaluate([*answered(), bad], "--no-text", "--skip-bad-rows")
        for path in (tmp_path / "run").glob("*"):
            content = path.read_bytes()
            for word in (b"swims", b"trout", b"SECRET"):
                assert word not in content, path
        table = (tmp_path / "run" / "predictions-mine.csv").read_text(encoding="utf-8-sig")
        assert table.splitlines()[1].startswith("1,,A,")

    def test_a_run_without_text_goes_on_with_it(self, evaluate, tmp_path: Path) -> None:
        """As one of an earlier version does, whose samples have none."""
        evaluate(answered())
        paths = sorted((tmp_path / "run").glob("samples-*.jsonl"))
        whole = [lines(path) for path in paths]
        wanted = json.loads((tmp_path / "run" / "results.json").read_text())["results"]
        for path, samples in zip(paths, whole, strict=True):
            older = [{k: v for k, v in s.items() if k != "text"} for s in samples[:2]]
            path.write_text("".join(json.dumps(s) + "\n" for s in older))
        evaluate(answered(), "--resume")
        for path, samples in zip(paths, whole, strict=True):
            assert ["text" in sample for sample in lines(path)] == [False, False, True]
            assert [s["scores"] for s in lines(path)] == [s["scores"] for s in samples]
        assert json.loads((tmp_path / "run" / "results.json").read_text())["results"] == wanted

    def test_without_answers_there_are_predictions_and_nothing_is_scored(
        self, evaluate, capsys, tmp_path: Path
    ) -> None:
        out, err = evaluate(ROWS)
        folder = tmp_path / "run"
        path = tmp_path / "mine.jsonl"
        assert err == f"minise: {path}: has no answers, so nothing can be scored\n"
        assert "mine: 3 questions without answers, so nothing is scored." in out
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

    def test_what_needs_answers_is_left_out_or_refused_without_them(
        self, evaluate, capsys, llama_folder: Path, tmp_path: Path
    ) -> None:
        out, err = evaluate(ROWS[:2], "--method", "standard,dirichlet")
        assert "dirichlet is fitted on answers, and these questions have none" in err
        assert not (tmp_path / "run" / "samples-mine-dirichlet.jsonl").exists()
        fixed = ("--task", tmp_path / "mine.jsonl", "--model", llama_folder)
        asked = ("--experiment", "main", "--output-path", tmp_path / "other")
        status, out, err = run(capsys, "eval", *fixed, *asked)
        assert (status, out) == (2, "")
        said = "minise: an experiment needs answers; without them give --method"
        assert err.splitlines()[-1] == said
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
    def folder(self, evaluate, tmp_path: Path) -> Path:
        evaluate(answered())
        folder = tmp_path / "run"
        for path in folder.glob("samples-*"):
            path.unlink()
        self.make(folder, "standard", [0, 0, 2])
        self.make(folder, "self-ensemble", [3, 1, 2])
        return folder

    def test_they_are_listed_for_a_terminal_and_in_markdown(self, capsys, folder: Path) -> None:
        asked = ("report", folder, "--differences", "standard", "self-ensemble")
        status, out, err = run(capsys, *asked)
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
        _, out, _ = run(capsys, *asked, "--json")
        [told] = json.loads(out)
        assert (told["task"], len(told["questions"])) == ("mine", 2)
        assert told["questions"][1]["self-ensemble"] == "trout (60.0%), right"

    def test_two_that_agree_and_a_method_that_is_not_there(self, capsys, folder: Path) -> None:
        self.make(folder, "twin", [0, 0, 2])
        _, out, _ = run(capsys, "report", folder, "--differences", "standard", "twin")
        assert out.startswith("mine: standard and twin disagree on 0 of 3 questions\n")
        refused = run(capsys, "report", folder, "--differences", "standard", "cyclic")
        known = "the methods are standard, self-ensemble"
        assert_one_line(*refused, ['no task has answers of both "standard" and "cyclic"', known])

    def test_each_of_several_folders_is_looked_at_or_one_beside_the_other(
        self, capsys, folder: Path, tmp_path: Path
    ) -> None:
        other = tmp_path / "other"
        shutil.copytree(folder, other)
        asked = ("report", folder, other, "--differences", "standard")
        _, out, _ = run(capsys, *asked, "self-ensemble")
        model = json.loads((folder / "results.json").read_text())["config"]["model"]
        title = f"{Path(model).name}, mine: standard and self-ensemble disagree on 2 of 3"
        assert out.count(title) == 2
        self.make(other, "cyclic", [0, 1, 1])
        _, out, _ = run(capsys, *asked, "cyclic")
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
