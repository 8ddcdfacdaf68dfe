"""minise eval and report from the command line."""

import csv
import io
import json
import re
import shutil
import statistics
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from minise import SelfEnsemble, Standard, load
from minise.commands.cli import main
from minise.engines import token_counts
from minise.lab.data.datasets import DATASETS
from minise.lab.data.miniature import WORLDS
from minise.lab.data.tasks import Selection, load_tasks
from minise.lab.evaluation.experiments import EXPERIMENTS
from minise.lab.methods.registry import METHODS
from tests.lab.evaluation.conftest import lines
from tests.lab.support.answers import read_answers

SMALL = "eval --task miniature --limit 3 --cut-to 4 --trials 1 --method"
Capture = pytest.CaptureFixture[str]


def run(words: str, *more: str) -> int:
    return main([*words.split(), *more])


def test_an_evaluation_ends_with_its_report(tmp_path: Path, capsys: Capture) -> None:
    folder = tmp_path / "run"
    assert run(f"{SMALL} standard,self-ensemble(trials=2) --group-size 2 -o", str(folder)) == 0
    out = capsys.readouterr().out
    assert "self-ensemble(trials=2) - standard" in out
    assert "not a full run" in " ".join(out.split())
    content = json.loads((folder / "results.json").read_text())
    (task,) = content["config"]["tasks"].values()
    assert task["options"] == {"group_size": 2, "trials": 1, "orders": 1}
    assert task["methods"]["self-ensemble(trials=2)"]["settings"]["trials"] == 2
    assert content["config"]["limit"] == 3


def test_the_method_named_first_comes_first(tmp_path: Path) -> None:
    assert run(f"{SMALL} vector-scaling(folds=3),self-ensemble -o", str(tmp_path)) == 0
    content = json.loads((tmp_path / "results.json").read_text())
    names = ["vector-scaling(folds=3)", "self-ensemble", "standard"]
    assert list(content["results"]["miniature-k4"]) == names
    assert {one["b"] for one in content["differences"]["miniature-k4"]} == {names[0]}


def test_options_reach_the_methods(tmp_path: Path) -> None:
    words = f"{SMALL} self-ensemble --grouping independent --no-null-option --engine separate"
    words += " --keep-groups --keep-text --seed 1,2 --question-seed 0 -o"
    assert run(words, str(tmp_path)) == 0
    rows = read_answers(tmp_path / "samples-miniature-k4-self-ensemble.jsonl")
    assert [row.seed for row in rows] == [1, 1, 1, 2, 2, 2]
    assert [row.id for row in rows[:3]] == [row.id for row in rows[3:]]
    assert all(row.null is None and len(row.groups) == 1 for row in rows)
    assert all(row.choices for row in rows)
    assert json.loads((tmp_path / "run.json").read_text())["seeds"] == [1, 2]


def test_the_engine_and_equal_bits_are_those_of_the_run(tmp_path: Path, capsys: Capture) -> None:
    mine = tmp_path / "mine.py"
    mine.write_text("from minise.engines import packed as own\n")
    packed, own = tmp_path / "packed", tmp_path / "own"
    words = f"{SMALL} standard,self-ensemble --equal-bits"
    assert run(f"{words} --engine packed -o", str(packed)) == 0
    assert "equal bits, engine packed;" in capsys.readouterr().out
    assert run(f"{words} --engine {mine}:own -o", str(own)) == 0
    for method in ("standard", "self-ensemble"):
        name = f"samples-miniature-k4-{method}.jsonl"
        assert lines(own / name) == lines(packed / name)
    what = json.loads((own / "run.json").read_text())
    assert what["equal_bits"] is True
    assert what["tasks"]["miniature-k4"]["methods"]["standard"]["engine"] == f"{mine}:own"


@pytest.mark.slow
def test_the_ablation_has_a_column_for_each_part_that_is_left_out(tmp_path: Path) -> None:
    words = "eval --experiment ablation --task miniature --limit 3 --trials 2 -o"
    assert run(words, str(tmp_path)) == 0
    methods = json.loads((tmp_path / "run.json").read_text())["tasks"]["miniature"]["methods"]
    assert {name: (one["kind"], one["engine"]) for name, one in methods.items()} == {
        "standard": ("standard", "tree"),
        "without-mask": ("self-ensemble", "without-mask"),
        "without-positions": ("self-ensemble", "without-positions"),
        "self-ensemble": ("self-ensemble", "tree"),
    }
    report = (tmp_path / "report.md").read_text()
    assert re.search(r"task +\| standard +\| without-mask +\| without-positions +\| self-", report)
    rows = {name: lines(tmp_path / f"samples-miniature-{name}.jsonl") for name in methods}
    for name in ("without-mask", "without-positions"):
        assert rows[name][0]["normalized"] != rows["self-ensemble"][0]["normalized"]


def test_each_seed_draws_its_questions_unless_told_otherwise(tmp_path: Path) -> None:
    assert run(f"{SMALL} standard --seed 1,2 -o", str(tmp_path)) == 0
    rows = read_answers(tmp_path / "samples-miniature-k4-standard.jsonl")
    assert rows[0].id != rows[3].id


def test_shards_are_joined_by_a_report(tmp_path: Path, capsys: Capture) -> None:
    whole, parts = str(tmp_path / "whole"), str(tmp_path / "parts")
    assert run(f"{SMALL} standard --equal-bits -o {whole}") == 0
    for i in (0, 1):
        assert run(f"{SMALL} standard --equal-bits --shard {i}/2 -o {parts}") == 0
        if i == 0:
            assert run(f"report {parts}") == 2
            assert "--shard 1/2" in capsys.readouterr().err
    assert run(f"report {parts}") == 0
    name = "samples-miniature-k4-standard.jsonl"
    assert lines(Path(parts) / name) == lines(Path(whole) / name)


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("eval -o DIR", "--task"),
        ("eval --task miniature -o DIR", "--method"),
        ("eval --task miniature --method standard", "--output"),
        ("eval --task miniature --method nothing -o DIR", "nothing"),
        ("eval --task miniature --method standard,standard -o DIR", "standard"),
        ("eval --task miniature --method self-ensemble(m=3) -o DIR", '"m"'),
        ("eval --task miniature --method ./no.py:Mine -o DIR", "no.py"),
        ("eval --task no.csv --method standard -o DIR", "no.csv"),
        ("eval --task miniature --method standard --experiment main -o DIR", "--experiment"),
        ("eval --experiment nothing -o DIR", "nothing"),
        ("eval --task miniature --method standard --limit 0 -o DIR", "0"),
        ("eval --task miniature --method standard --cut-to 1,x -o DIR", "--cut-to"),
        ("eval --task miniature --method standard --seed 1,1 -o DIR", "--seed"),
        ("eval --task miniature --method standard --seed , -o DIR", "--seed"),
        ("eval --task miniature --method standard --engine fast -o DIR", "fast"),
        ("eval --experiment efficiency --task miniature --engine tree -o DIR", "--engine"),
        ("eval --experiment ablation --task miniature --engine packed -o DIR", "--engine"),
        ("eval --task miniature --method standard --engine no.py:mine -o DIR", "no.py"),
        ("eval --task miniature --method without-mask --limit 2 -o DIR", "without-mask"),
        ("eval --task miniature --method standard --shard 2/2 -o DIR", "--shard"),
        ("eval --task miniature --method standard --shard 1 -o DIR", "--shard"),
        ("eval --task miniature --method standard --shard 0/1000000000 -o DIR", "100,000"),
        ("eval --task miniature --method first-trials(trials=9) --trials 8 -o DIR", "9 trials"),
        ("eval --task miniature --method first-trials(of=dirichlet) -o DIR", "dirichlet"),
        ("eval --task miniature --method self-ensemble --grouping odd --limit 2 -o DIR", "odd"),
        ("eval --task miniature --method reasoning --limit 2 -o DIR", "reasoning"),
        ("eval --task miniature --method standard --limit 2 -o FILE/run", "FILE"),
        ("report DIR", "no run"),
        ("report", "DIR"),
        ("report FILE", "FILE"),
    ],
)
def test_unusable_input_is_one_line(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch, words: str, named: str
) -> None:
    (tmp_path / "FILE").touch()
    model = "" if words.startswith("report") else f" --model {Path('weights/tiny-llama').resolve()}"
    monkeypatch.chdir(tmp_path)
    assert run(words + model) == 2
    err = capsys.readouterr().err.strip()
    assert named in err.splitlines()[-1]
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("words", "names"),
    [
        ("--help", [*DATASETS, *WORLDS]),
        ("--task miniature --method x -o x", METHODS),
        ("--experiment x -o x", EXPERIMENTS),
        ("-o x", EXPERIMENTS),
    ],
)
def test_all_names_are_listed(capsys: Capture, words: str, names: Iterable[str]) -> None:
    run(f"eval {words}")
    shown = capsys.readouterr()
    for name in names:
        assert re.search(rf"\s{re.escape(name)}[,.;\s]", shown.out + shown.err), name


def test_without_the_extra_it_is_named(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    assert run(f"{SMALL} standard -o", str(tmp_path)) == 2
    assert run("report", str(tmp_path)) == 2
    assert capsys.readouterr().err.count("python3 install.py eval") == 2


def test_a_run_with_another_tokenizer_is_another_run(tmp_path: Path, capsys: Capture) -> None:
    """Its prompts are other ids: of a server nothing else would tell the two apart."""
    other = Path(shutil.copytree("weights/tiny-llama", tmp_path / "other"))
    content = json.loads((other / "tokenizer.json").read_text("utf-8"))
    content["added_tokens"][0]["special"] = not content["added_tokens"][0]["special"]
    words = f"{SMALL} standard -o {tmp_path / 'run'} --model {other}"
    assert run(words) == 0
    (other / "tokenizer.json").write_text(json.dumps(content), "utf-8")
    assert run(words) == 2
    assert "tokenizer is" in capsys.readouterr().err


def test_questions_without_answers_are_said_before_they_run(
    tmp_path: Path, capsys: Capture
) -> None:
    file = tmp_path / "mine.csv"
    file.write_text("question,A,B,kind\nWhich is a bird?,wren,oak,wren\n")
    assert run(f"eval --task {file} --method standard -o {tmp_path / 'run'}") == 0
    assert "mine: no question has an answer, so nothing is scored" in capsys.readouterr().err


def test_a_table_of_ones_own_that_meets_the_shipped_toy_is_told_so(
    tmp_path: Path, capsys: Capture
) -> None:
    file = tmp_path / "mine.csv"
    file.write_text("id,question,A,B,answer\n1,Which is a bird?,wren,oak,A\n")
    words = f"eval --task {file},miniature --limit 1 --cut-to 2 --method standard --price"
    told = "is answered by weights/tiny-llama, a toy of 2 million parameters"
    assert run(words) == 0
    assert capsys.readouterr().err.count(f"mine.csv {told}") == 1
    assert run(words, "--model", str(Path("weights/tiny-llama").resolve())) == 0
    assert run(words.replace(f"{file},", "")) == 0
    assert told not in capsys.readouterr().err


def test_predictions_are_a_table_of_every_run(tmp_path: Path, capsys: Capture) -> None:
    """Also where some answers are missing; of a shard its own."""
    file, folder = tmp_path / "mine.csv", tmp_path / "run"
    file.write_text(
        "id,question,A,B,C,answer\n"
        '7,"Which is a bird, or a tree?",wren,oak,"quartz, or not",B\n'
        "8,Which is a fish?,wren,oak,trout,\n"
    )
    words = f"eval --task {file} --method standard,self-ensemble --group-size 2 --seed 1 -o"
    assert run(words, str(folder)) == 0
    out, err = capsys.readouterr()
    assert f"written: {folder / 'predictions.csv'}, a row for each question and method\n" in out
    assert "mine: 1 of 2 have no answer: only predicted" in err
    with (folder / "predictions.csv").open(newline="", encoding="utf-8") as table:
        rows = list(csv.DictReader(table))
    assert [(row["method"], row["id"]) for row in rows] == [
        ("standard", "7"), ("standard", "8"), ("self-ensemble", "7"), ("self-ensemble", "8"),
    ]  # fmt: skip
    for row in rows:
        path = folder / f"samples-mine-{row['method']}.jsonl"
        [answer] = [one for one in read_answers(path) if one.id == row["id"]]
        choices = ["wren", "oak", "quartz, or not" if row["id"] == "7" else "trout"]
        assert row["prediction"] == choices[answer.prediction]
        assert (row["task"], row["seed"], row["tokens"]) == ("mine", "1", str(answer.tokens))
        assert float(row["normalized"]) == pytest.approx(max(answer.normalized), abs=1e-6)
        assert float(row["on_labels"]) == pytest.approx(answer.on_labels, abs=1e-6)
        many = row["method"] == "self-ensemble"
        assert (row["error"] != "", row["none_of_the_above"] != "") == (many, many)
        assert row["answer"] == ("oak" if row["id"] == "7" else "")
        assert row["right"] == (str(int(answer.prediction == 1)) if row["id"] == "7" else "")
    shard = tmp_path / "shard"
    assert run(words, str(shard), "--shard", "1/2") == 0
    assert (shard / "predictions.shard-1-of-2.csv").read_text().count("\n") == 1 + 2


def test_a_cell_of_predictions_is_the_text_whatever_characters_it_has(tmp_path: Path) -> None:
    """A lone carriage return is the end of a row for readers, if its cell is not quoted."""
    texts = ["a\rb", "a\nb", "a\r\nb", 'a"b', "a,b", "a\tb", "a\x0bb", "a\u2028b", "a;b", " a "]
    file, folder = tmp_path / "mine.jsonl", tmp_path / "run"
    with file.open("w") as lines:
        for number, text in enumerate(texts):
            row = {"id": f"{number}{text}", "question": f"Which?{text}", "answer": 0}
            lines.write(json.dumps({**row, "choices": [f"A{text}z", "B"]}) + "\n")
    assert run(f"eval --task {file} --method standard -o {folder}") == 0
    with (folder / "predictions.csv").open(newline="", encoding="utf-8") as table:
        rows = list(csv.DictReader(table))
    assert [row["id"] for row in rows] == [f"{number}{text}" for number, text in enumerate(texts)]
    assert [row["question"] for row in rows] == [f"Which?{text}" for text in texts]
    assert [row["answer"] for row in rows] == [f"A{text}z" for text in texts]


def test_for_a_spreadsheet_the_table_says_that_it_is_utf_8_and_no_cell_is_a_formula(
    tmp_path: Path,
) -> None:
    """Without the option the cells are the texts, to merge by."""
    file = tmp_path / "mine.jsonl"
    row = {"id": "@7", "question": '=HYPERLINK("http://x", "größer?")', "choices": ["-5", "+a()"]}
    file.write_text(json.dumps({**row, "answer": 0}) + "\n", "utf-8")
    for option, mark, apostrophe in ((["--for-spreadsheet"], b"\xef\xbb\xbf", "'"), ([], b"", "")):
        folder = tmp_path / f"run{len(option)}"
        words = ["eval", "--task", str(file), "--method", "standard", "-o", str(folder)]
        assert main([*words, *option]) == 0
        content = (folder / "predictions.csv").read_bytes()
        assert content.startswith(mark + b"task,")
        [told] = csv.DictReader(io.StringIO(content.decode("utf-8-sig"), newline=""))
        assert told["question"] == apostrophe + str(row["question"])
        assert told["id"] == f"{apostrophe}@7"
        assert told["answer"] == "-5"  # a number
        assert told["prediction"] in ("-5", f"{apostrophe}+a()")


def test_what_has_no_prediction_has_a_row_that_says_why(tmp_path: Path) -> None:
    """A question that a server did not answer, what is made from its answer, a method."""
    file, folder = tmp_path / "mine.csv", tmp_path / "run"
    file.write_text("id,question,A,B,C,answer\n7,Up?,yes,no,why,A\n8,Down?,yes,no,why,B\n")
    words = f"eval --task {file} --method self-ensemble,first-trials(trials=1),reasoning"
    words += f" --group-size 2 --trials 2 -o {folder}"
    assert run(words) == 0
    path = folder / "samples-mine-self-ensemble.jsonl"
    first, second = path.read_text().splitlines()
    missing = {name: json.loads(second)[name] for name in ("id", "seed", "question_hash", "answer")}
    missing["left_out"] = "no label B"
    path.write_text(f"{first}\n{json.dumps(missing)}\n")
    assert run(words) == 0
    with (folder / "predictions.csv").open(newline="", encoding="utf-8") as table:
        rows = list(csv.DictReader(table))
    assert [(row["method"], row["id"], row["answer"]) for row in rows] == [
        ("self-ensemble", "7", "yes"), ("self-ensemble", "8", "no"),
        ("first-trials(trials=1)", "7", "yes"), ("first-trials(trials=1)", "8", "no"),
        ("reasoning", "7", "yes"), ("reasoning", "8", "no"),
    ]  # fmt: skip
    reasons = ["", "no label B", "", "a method that it needs has no answer"]
    reasons += 2 * ["is no reasoning model"]
    for row, reason in zip(rows, reasons, strict=True):
        assert reason in row["left_out"]
        assert not row["left_out"].startswith("left out")
        wanted = {row[name] == "" for name in ("prediction", "normalized", "tokens", "right")}
        assert wanted == {reason != ""}


@pytest.mark.parametrize("place", [0, 4, 17, 19])
def test_a_question_with_more_choices_than_labels_is_left_out_and_the_others_are_answered(
    tmp_path: Path, capsys: Capture, place: int
) -> None:
    """Wherever it stands, and in one go or in two. The answers are those of a run without it."""
    questions = [
        {"id": f"q{n}", "question": f"Which {n}?", "choices": ["a", "b"]} for n in range(20)
    ]
    file, folder = tmp_path / "mine.jsonl", tmp_path / "run"
    words = f"eval --task {file} --method standard,self-ensemble --group-size 2 --trials 2 -o"

    def write(questions: list[dict[str, Any]]) -> None:
        file.write_text("".join(json.dumps({**one, "answer": 0}) + "\n" for one in questions))

    write([one for one in questions if one["id"] != f"q{place}"])
    assert run(words, str(tmp_path / "without")) == 0
    expected = read_answers(tmp_path / "without/samples-mine-standard.jsonl")
    questions[place]["choices"] = [f"c{n}" for n in range(30)]
    write(questions)
    capsys.readouterr()
    for _ in range(2):  # the second time nothing is asked
        assert run(words, str(folder)) == 0
        about = f'mine, standard: 1 of 20 questions are left out ("q{place}"): 30 choices in one'
        assert about in capsys.readouterr().err
        assert about in (folder / "report.md").read_text()
        path = folder / "samples-mine-standard.jsonl"
        found = [json.loads(line) for line in path.read_text().splitlines()]
        assert [row["id"] for row in found if "left_out" in row] == [f"q{place}"]
        rows = [row for row in found if "left_out" not in row]
        assert [row["id"] for row in found] == [one["id"] for one in questions]
        for row, answer in zip(rows, expected, strict=True):
            assert row["scores"] == pytest.approx(answer.scores, abs=1e-5)
        path.write_text("".join(path.read_text().splitlines(keepends=True)[: place + 1]))
    assert len(read_answers(folder / "samples-mine-self-ensemble.jsonl")) == 20


def test_a_method_that_can_ask_no_question_at_all_has_no_row_of_results(
    tmp_path: Path, capsys: Capture
) -> None:
    file, folder = tmp_path / "mine.jsonl", tmp_path / "run"
    many = {"choices": [f"c{n}" for n in range(30)], "answer": 0}
    asked = [{"id": str(n), "question": f"Which {n}?", **many} for n in range(3)]
    file.write_text("".join(json.dumps(one) + "\n" for one in asked))
    words = f"eval --task {file} --method standard,self-ensemble --group-size 2 --trials 1 -o"
    assert run(words, str(folder)) == 0
    assert "mine, standard: 3 of 3 questions are left out" in capsys.readouterr().err
    results = json.loads((folder / "results.json").read_text())["results"]
    assert list(results["mine"]) == ["self-ensemble"]


def test_the_error_of_a_line_is_the_standard_error_of_its_score(tmp_path: Path) -> None:
    words = f"{SMALL} self-ensemble(trials=4) --group-size 2 --keep-groups -o"
    assert run(words, str(tmp_path)) == 0
    for row in read_answers(tmp_path / "samples-miniature-k4-self-ensemble(trials=4).jsonl"):
        values = []
        for group in row.groups:
            if row.prediction in group.choices:
                values.append(group.probabilities[group.choices.index(row.prediction)])
        assert statistics.mean(values) == pytest.approx(row.scores[row.prediction])
        assert row.error == pytest.approx(statistics.stdev(values) / 2)


ROUNDS = """
from minise import SelfEnsemble, Standard, ask, branch_logits

class Rounds(Standard):
    name = "rounds"

    def prompts(self, lm, question, seed=0):
        ask(lm, SelfEnsemble(group_size=2, trials=2), question, seed)  # 2 x 2 prompts
        ids = lm.tokenizer.encode([question.text])[0]
        branch_logits(lm, ids, [[5], [6]])  # 2 prompts
        return super().prompts(lm, question, seed)
"""


def test_what_a_method_asks_of_the_model_is_counted_wherever_it_asks(
    tmp_path: Path, capsys: Capture
) -> None:
    """In `prompts`, by the model's `logits` and by branch_logits: the cost of all of it, told
    before and after, and by `minise ask`."""
    own, folder = tmp_path / "own.py", tmp_path / "run"
    own.write_text(ROUNDS)
    words = f"eval --task miniature --limit 2 --cut-to 4 --method {own}:Rounds"
    assert run(words, "--price") == 0
    line = capsys.readouterr().out.splitlines()[1].split()
    assert line[2:4] == ["2", "~14"]
    assert run(words, "-o", str(folder)) == 0
    rows = read_answers(next(folder.glob("samples-*.jsonl")))
    lm = load("weights/tiny-llama")
    [task] = load_tasks(["miniature"], Selection(limit=2, cut_to=[4]))
    for row, question in zip(rows, task.questions, strict=True):
        _, group = SelfEnsemble(group_size=2, trials=2).prompts(lm, question)
        _, last = Standard().prompts(lm, question)
        ids = lm.tokenizer.encode([question.text])[0]
        expected = len(ids) + 2
        for prompts in (group, last):
            expected += token_counts(prompts.prefix, prompts.branches)["tree"]
        assert row.tokens == expected
    assert int(line[6].replace("~", "").replace(",", "")) == sum(row.tokens for row in rows)
    capsys.readouterr()
    asked = ("--question", "Which?", "--choice", "a", "--choice", "b", "--choice", "c")
    assert main(["ask", "--method", f"{own}:Rounds", *asked, "--choice", "d"]) == 0
    assert "cost: 7 prompts, 6 of them in earlier rounds" in capsys.readouterr().out


def test_the_price_has_the_prompts_and_tokens_of_all_questions(
    tmp_path: Path, capsys: Capture
) -> None:
    """Questions of unequal lengths, and one with more choices than standard inference has labels
    for: the price is what the run then takes."""
    file, folder = tmp_path / "mine.jsonl", tmp_path / "run"
    with file.open("w") as lines:
        for n in range(23):
            size = 30 if n == 7 else 2 + n * n % 11
            row = {"id": str(n), "question": "Why? " * (1 + n % 5), "answer": 0}
            lines.write(json.dumps({**row, "choices": [f"c{i}" for i in range(size)]}) + "\n")
    words = f"eval --task {file} --method standard,self-ensemble --trials 2"
    assert run(words, "--price") == 0
    out = capsys.readouterr().out
    assert "mine, standard: 1 more cannot be asked, and are left out" in out
    told = {line.split()[1]: line.split()[2:] for line in out.splitlines()[1:3]}
    assert run(words, "-o", str(folder), "--keep-groups") == 0
    for name, cells in told.items():
        path = folder / f"samples-mine-{name}.jsonl"
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        rows = [row for row in rows if "left_out" not in row]
        tokens = sum(row["tokens"] for row in rows)
        prompts = sum(len(row["groups"]) for row in rows)
        found = [int(cells[place].replace(",", "")) for place in (0, 1, 4)]
        assert found == [len(rows), prompts, tokens], name


def test_the_price_is_told_and_nothing_is_asked_or_written(tmp_path: Path, capsys: Capture) -> None:
    folder = tmp_path / "run"
    words = f"{SMALL} standard,self-ensemble,cot(max_new_tokens=2) --group-size 2 -o"
    assert run(words, str(folder), "--price") == 0
    out = capsys.readouterr().out.splitlines()
    assert not folder.exists()
    assert run(words.removesuffix(" -o"), "--price") == 0  # it needs no folder
    alone = capsys.readouterr().out.splitlines()
    for line, before in zip(alone[:5], out[:5], strict=True):
        assert line.split()[:-1] == before.split()[:-1]  # but for the seconds
    assert out[0].split() == [
        *("task", "method", "questions", "prompts", "separate", "packed", "tree", "seconds")
    ]
    rows = {line.split()[1]: line.split() for line in out[1:4]}
    assert rows["standard"][2:4] == ["3", "3"]
    assert rows["self-ensemble"][2:4] == ["3", "6"]
    assert rows["cot(max_new_tokens=2)"][2:4] == ["3", "~3"]  # it writes first
    separate, packed, tree = (int(cell) for cell in rows["self-ensemble"][4:7])
    assert separate > packed > tree > 0
    assert out[4].split()[:2] == ["all", "~12"]
    assert run(words, str(folder)) == 0
    rows = read_answers(folder / "samples-miniature-k4-self-ensemble.jsonl")
    assert sum(row.tokens for row in rows) == tree
    capsys.readouterr()
    assert run(words, str(folder), "--price") == 0
    assert capsys.readouterr().out == "nothing is left to ask\n"
