"""`minise eval`: what options mean together with experiments, and how long the help is."""

from __future__ import annotations

import csv
import json
import re
from argparse import Namespace
from dataclasses import FrozenInstanceError
from pathlib import Path
from typing import Any

import pytest

from minise.commands import cli
from minise.commands import eval as command
from minise.commands.eval import EvalRequest
from minise.commands.run_eval import variants_of
from minise.data.tasks import Task
from tests.support.commands import assert_one_line, run


def eval_request(*arguments: str) -> EvalRequest:
    """The request that a command line makes."""
    words = ("eval", *arguments, "--output-path", "x")
    args = cli.parser(["eval"]).parse_args(words, Namespace(arguments=words))
    return command.request(args)


DELETED = ("--folds", "--max-new-tokens", "--max-trials", "--data", "--data-revision", "--format")
DELETED += ("--include-path", "--num-fewshot", "--double-quant", "--method-preset", "--choices")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--preset", "papers"], "--preset: invalid choice: 'papers'"),
        (["--experiment", "mains"], "--experiment: invalid choice: 'mains'"),
        (["--grouping", "fair"], "--grouping: fair is unknown; use one of random, independent"),
        (["--engine", "fast"], "--engine: invalid choice: 'fast'"),
        (["--experiment", "main", "--meth", "standard"], "unrecognized arguments: --meth"),
    ],
)
def test_an_unknown_value_is_one_line(capsys, options: list[str], message: str) -> None:
    assert_one_line(*run(capsys, "eval", *options, "--output-path", "x"), [message])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--trials", 10**9], "--trials 1000000000 is over the limit of 50,000"),
        (["--questions", 10**9], "1000000000 questions are too many; make 100,000 at most"),
        (["--seed", ",".join(map(str, range(101)))], "names a seed twice, or more than 100"),
        (["--label", "caf\udce9"], "the command line is not UTF-8"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_infinite_numbers_are_refused_at_once(capsys, options: list[Any], message: str) -> None:
    for module in ("scipy", "sklearn", "matplotlib"):
        pytest.importorskip(module)
    fixed = ("--task", "miniature", "--method", "standard", "--output-path", "x")
    assert_one_line(*run(capsys, "eval", *fixed, *options), [message])


def test_the_help_fits_two_screens(capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    with pytest.raises(SystemExit):
        run(capsys, "eval", "--help")
    shown = capsys.readouterr().out
    assert shown.count("\n") <= 100
    for option in ("--experiment", "--preset", "--only-choices", "--cut-to"):
        assert f"  {option} " in shown
    assert not set(DELETED) & set(re.findall(r"--[\w-]+", shown))


@pytest.fixture
def evaluate(undrawn, capsys, llama_folder: Path, tmp_path: Path) -> Any:
    """Run an experiment on a few questions of the miniature: its variants, results and stderr."""
    for module in ("scipy", "sklearn", "matplotlib"):
        pytest.importorskip(module)

    def run_it(*options: object) -> tuple[dict[str, Any], dict[str, Any], str]:
        fixed = ("eval", "--model", llama_folder, "--task", "miniature", "--output-path", tmp_path)
        status, _, err = run(capsys, *fixed, *options)
        assert status == 0
        results = json.loads((tmp_path / "results.json").read_text())
        (variants,) = results["config"]["variants"].values()
        return {variant["name"]: variant for variant in variants}, results, err

    return run_it


def test_options_set_only_what_an_experiment_leaves_open(evaluate) -> None:
    options = ("--grouping", "independent", "--no-null-option", "--engine", "separate")
    sizes = ("--group-size", 3, "--trials", 2)
    variants, results, err = evaluate("--experiment", "scale", "--questions", 2, *options, *sizes)
    ensemble = variants["self-ensemble"]
    assert ensemble["engine"] == variants["standard"]["engine"] == "separate"
    assert ensemble["settings"] == {
        "group_size": 3, "trials": 2, "grouping": "independent", "null_option": False,
        "preset": "paper",
    }  # fmt: skip
    assert results["config"]["experiment"] == "scale"
    assert results["config"]["as_in_paper"] is False
    assert err == ""


def test_without_options_an_experiment_has_the_papers_settings(evaluate) -> None:
    variants, results, _ = evaluate("--experiment", "scale", "--questions", 2)
    settings = variants["self-ensemble"]["settings"]
    assert (settings["group_size"], settings["trials"]) == (4, 20)
    assert results["config"]["as_in_paper"] is True


def test_an_experiment_keeps_the_engines_that_it_varies(evaluate) -> None:
    sizes = ("--group-size", 2, "--trials", 1)
    variants, _, _ = evaluate(
        "--experiment", "efficiency", "--questions", 1, "--engine", "tree", *sizes
    )
    engines = {name: variant["engine"] for name, variant in variants.items()}
    assert engines == {"multi-pass": "separate", "single-pass": "dense", "tree": "tree"}


def test_an_experiment_keeps_the_settings_that_it_varies(evaluate) -> None:
    options = ("--limit", 1, "--group-size", 2, "--trials", 3, "--grouping", "random")
    variants, _, _ = evaluate("--experiment", "sensitivity", "--cut-to", 5, *options)
    assert {v["settings"]["group_size"] for v in variants.values()} == {2, 3, 4, 5}
    assert variants["m2-n80"]["settings"]["trials"] == 80
    assert variants["m2-n80"]["settings"]["grouping"] == "random"
    assert variants["m2-exact"]["settings"]["grouping"] == "exact"


@pytest.mark.parametrize(
    ("options", "nested"),
    [
        ({}, True),
        ({"grouping": "independent"}, True),
        ({"preset": "authors-code"}, False),
    ],
)
def test_first_trials_replace_a_smaller_run_only_if_groups_are_nested(
    options: dict[str, str], nested: bool
) -> None:
    """A design of 20 is not the beginning of one of 80; nor is a run whose last group is read
    elsewhere."""
    for module in ("scipy", "sklearn", "matplotlib"):
        pytest.importorskip(module)
    typed = [part for name, value in options.items() for part in (f"--{name}", value)]
    request = eval_request("--experiment", "sensitivity", *typed)
    planned = variants_of(request, Task("x", "miniature", [], {}), [])
    variants = {variant.name: variant for variant in planned}
    assert variants["m2-n10"].method == ("first-trials" if nested else "self-ensemble")
    assert {"group_size": 2, "trials": 10}.items() <= variants["m2-n10"].settings.items()
    assert variants["m2-n80"].method == variants["m2-exact"].method == "self-ensemble"
    if not nested:
        assert options.items() <= variants["m2-n10"].settings.items()
        assert variants["m2-exact"].settings["grouping"] == "exact"


def test_methods_that_cannot_be_fitted_are_left_out_of_an_experiment(evaluate) -> None:
    sizes = ("--group-size", 2, "--trials", 1)
    variants, results, err = evaluate("--experiment", "main", "--questions", 4, *sizes)
    names = ["standard", "self-ensemble", "cyclic"]
    names += ["cloze", "presence"]
    assert list(variants) == list(results["results"]["miniature"]) == names
    assert err.startswith("minise: miniature: left out: vector-scaling, dirichlet (")
    assert "4 questions for 5 folds" in err
    assert err.count("\n") == 1


def test_a_grouping_from_a_users_file_runs(evaluate, tmp_path: Path) -> None:
    """Every pair of neighbours, as a file outside the package."""
    mine = tmp_path / "mine.py"
    mine.write_text(
        "from minise import Groups\n\n"
        "def neighbours(num_choices, group_size, trials, seed, question_id):\n"
        "    pairs = [(i, (i + 1) % num_choices) for i in range(num_choices)]\n"
        "    return Groups((tuple(pairs),), complete=True)\n"
    )
    grouping = ("--grouping", f"{mine}:neighbours")
    variants, _, _ = evaluate(
        "--method", "self-ensemble", "--questions", 1, "--keep-groups", *grouping
    )
    assert variants["self-ensemble"]["settings"]["grouping"] == f"{mine}:neighbours"
    (line,) = (tmp_path / "samples-miniature-self-ensemble.jsonl").read_text().splitlines()
    groups = [tuple(group["choices"]) for group in json.loads(line)["groups"]]
    assert groups == [(i, (i + 1) % 8) for i in range(8)]


@pytest.mark.usefixtures("undrawn")
def test_a_method_that_cannot_be_fitted_is_left_out_and_the_others_run(capsys, tmp_path) -> None:
    """Twelve questions of the miniature are too few for Dirichlet. Nothing runs where no method
    that was named is left."""
    few = ("eval", "--task", "miniature", "--questions", 12, "-o", tmp_path, "--trials", 1)
    assert_one_line(*run(capsys, *few, "--method", "dirichlet"), ["dirichlet needs more questions"])
    status, _, err = run(capsys, *few, "--method", "standard,dirichlet")
    assert status == 0
    assert err == (
        "minise: miniature: left out: dirichlet (choice 1 of 8 is never the answer outside of a "
        "fold; dirichlet needs more questions or more folds)\n"
    )
    results = json.loads((tmp_path / "results.json").read_text())
    assert set(results["results"]["miniature"]) == {"standard"}


@pytest.mark.usefixtures("undrawn")
def test_results_have_the_number_of_threads(capsys, tmp_path) -> None:
    arguments = ("eval", "--task", "miniature", "--questions", 1, "--method", "standard")
    run(capsys, *arguments, "-o", tmp_path, "--threads", 1)
    text = (tmp_path / "results.json").read_text()
    assert re.findall(r'"threads": (\d+)', text) == ["1"]


@pytest.mark.parametrize("option", DELETED)
def test_settings_of_methods_are_not_options(capsys, option: str) -> None:
    assert_one_line(*run(capsys, "eval", option, "4", "-o", "x"), [f"arguments: {option} 4"])


def test_a_request_holds_the_options_and_the_experiment_and_is_frozen() -> None:
    for module in ("scipy", "sklearn", "matplotlib"):
        pytest.importorskip(module)
    request = eval_request("--experiment", "choices", "--cut-to", "2,3")
    assert (request.tasks, request.methods, request.seeds) == (("qasc",), (), (0,))
    assert (request.cut_to, request.questions) == ((2, 3), 1000)
    with pytest.raises(FrozenInstanceError):
        request.limit = 3  # type: ignore[misc]
    with pytest.raises(FrozenInstanceError):
        request.model.dtype = "float64"  # type: ignore[misc]


def test_commas_in_parentheses_separate_settings_of_methods() -> None:
    for module in ("scipy", "sklearn", "matplotlib"):
        pytest.importorskip(module)
    tasks = "qasc@v1,my.csv"
    methods = "standard,self-ensemble(trials=3,group_size=2)"
    request = eval_request("--task", tasks, "--method", methods)
    assert request.tasks == ("qasc@v1", "my.csv")
    assert request.methods == ("standard", "self-ensemble(trials=3,group_size=2)")


def test_columns_are_named_with_spaces_and_commas() -> None:
    for module in ("scipy", "sklearn", "matplotlib"):
        pytest.importorskip(module)
    typed = "Answer=Correct Answer, id=Nr.,question=Frage, kurz,option_a=One"
    request = eval_request("--task", "my.csv", "--method", "standard", "--columns", typed)
    assert request.columns == {
        "answer": "Correct Answer", "id": "Nr.", "question": "Frage, kurz", "option_a": "One",
    }  # fmt: skip
    assert eval_request("--task", "my.csv", "--method", "standard").columns == {}


@pytest.mark.parametrize("text", ["", "answer", "answer=", "remark=Note", "id=a,ID=b", "=Nr."])
def test_a_name_that_is_no_column_of_ours_is_refused(capsys, text: str) -> None:
    expected = ["--columns", "give NAME=COLUMN; names are id, question, choices, answer, A, B"]
    assert_one_line(*run(capsys, "eval", "--columns", text, "-o", "x"), expected)


@pytest.mark.usefixtures("undrawn")
def test_a_users_spreadsheet_is_scored_and_its_rows_are_found_again(
    capsys, llama_folder: Path, tmp_path: Path
) -> None:
    """First the columns are not understood and the line says how to name them; then it is done."""
    for module in ("scipy", "sklearn", "matplotlib"):
        pytest.importorskip(module)
    path = tmp_path / "my.csv"
    path.write_text(
        "Nr.;Question;A;B;Correct Answer\n"
        "q7;Up?;yes;no;B\nq8;Down?;B;A;A\nq8;twice?;x;y;A\nq9;Left?;x;y;A\n"
    )
    fixed = ("eval", "--task", path, "--method", "standard", "--model", llama_folder)
    status, _, err = run(capsys, *fixed, "-o", tmp_path / "first")
    assert status == 0
    assert "has no answers, so nothing can be scored" in err
    option = err.rpartition("--columns ")[2].strip().strip("'")
    options = ("--columns", option, "--skip-bad-rows", "-o", tmp_path / "run")
    status, _, err = run(capsys, *fixed, *options)
    assert (status, err.count("ignored")) == (0, 0)
    text = (tmp_path / "run" / "predictions-my.csv").read_text(encoding="utf-8-sig")
    table = list(csv.DictReader(text.splitlines()))
    assert [(row["row"], row["id"]) for row in table] == [("1", "q7"), ("2", "q8"), ("4", "q9")]
    assert [row["answer"] for row in table] == ["no", "B", "x"]
    for row in table:
        assert row["standard: letter"] in "AB"
        assert int(row["standard: tokens"]) > 0


@pytest.mark.usefixtures("undrawn")
def test_ask_takes_the_columns_and_the_form_of_the_answer(
    capsys, llama_folder: Path, tmp_path: Path
) -> None:
    path = tmp_path / "my.csv"
    path.write_text("Frage,A,B,right\nUp?,B,A,A\n")
    fixed = ("ask", "--json", "--trials", 1, "--model", llama_folder)
    options = ("--columns", "question=Frage,answer=right", "--answers")
    for form, answer in (("letter", 0), ("text", 1)):
        status, out, _ = run(capsys, *fixed, "--file", path, *options, form)
        assert status == 0
        assert json.loads(out)["answer"] == answer
    message = 'answer "A" is a letter and the text of choice 2; write the index, counted from 0, or'
    assert_one_line(*run(capsys, *fixed, "--file", path, *options[:2]), [message, "--answers text"])
    expected = ["--columns and --answers are for --file"]
    assert_one_line(*run(capsys, *fixed, "--answers", "text"), expected)
