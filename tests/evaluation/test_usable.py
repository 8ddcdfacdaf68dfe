"""`minise eval` plans every question before it asks one, and names those that it cannot ask."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from minise import Question, load
from minise.data.tasks import Task
from minise.evaluation.usable import able, usable
from minise.methods.build import build
from minise.methods.registry import Variant
from tests.support.commands import assert_one_line, run
from tests.support.rows import OWN, write

for module in ("scipy", "sklearn", "matplotlib"):
    pytest.importorskip(module)
pytestmark = pytest.mark.usefixtures("undrawn")

LONG = {"id": "long", "question": "Why? " * 300, "choices": ["a", "b", "c"], "answer": 0}
MANY = {"id": "many", "question": "Which?", "choices": [f"c{i}" for i in range(30)], "answer": 1}
BOTH = "standard,self-ensemble"


@pytest.fixture
def evaluate(capsys: Any, llama_folder: Path, tmp_path: Path) -> Any:
    def run_it(rows: list[Any], *options: object, folder: str = "run") -> tuple[int, str, str]:
        data = write(tmp_path / "mine.jsonl", rows)
        fixed = ("--model", llama_folder, "--task", data, "--output-path", tmp_path / folder)
        return run(capsys, "eval", *fixed, "--group-size", 2, "--trials", 2, *options)

    return run_it


def answered_ids(folder: Path) -> dict[str, list[str]]:
    """The ids of each samples file, by the name of the method."""
    return {
        path.stem.removeprefix("samples-mine-"): [
            json.loads(line)["id"] for line in path.read_text().splitlines()
        ]
        for path in folder.glob("samples-*.jsonl")
    }


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (LONG, "standard: a prompt has"),
        (MANY, "standard: 30 choices in one prompt, but only 26 labels"),
    ],
)
def test_an_unusable_question_stops_the_run_before_it_starts(
    evaluate: Any, tmp_path: Path, row: dict[str, Any], reason: str
) -> None:
    done = evaluate([*OWN, row], "--method", BOTH)
    place = f'mine.jsonl, line 3: question "{row["id"]}": {reason}'
    assert_one_line(*done, [place, "1 of 3 questions cannot be asked", "--skip-bad-rows"])
    assert not (tmp_path / "run").exists()


def test_an_unusable_question_is_left_out_for_all_methods_and_listed(
    evaluate: Any, tmp_path: Path
) -> None:
    """The question of 30 choices could be asked by Self-Ensemble; differences need both."""
    rows = [OWN[0], LONG, OWN[1], MANY, {**OWN[0], "id": "bad", "answer": 7}]
    status, _, err = evaluate(rows, "--method", BOTH, "--skip-bad-rows", "--seed", "0,1")
    assert status == 0
    for part in ("line 2: question", "line 4: question", "line 5: answer 7", "3 rows in all"):
        assert part in err
    assert set(map(tuple, answered_ids(tmp_path / "run").values())) == {("q1", "q2", "q1", "q2")}
    config = json.loads((tmp_path / "run" / "results.json").read_text())["config"]
    assert len(config["skipped_rows"]) == 3
    assert config["tasks"]["mine"]["questions"] == 4

    # The rest of the run is as if the file had held the other rows alone.
    evaluate(OWN, "--method", BOTH, "--seed", "0,1", folder="alone")
    cells = [json.loads((tmp_path / x / "results.json").read_text()) for x in ("run", "alone")]
    assert cells[0]["results"] == cells[1]["results"]
    assert cells[0]["differences"] == cells[1]["differences"]
    status, _, _ = evaluate(rows, "--method", BOTH, "--skip-bad-rows", "--seed", "0,1", "--resume")
    assert status == 0


def test_a_question_that_only_one_method_can_ask_is_asked_by_that_method(
    evaluate: Any, tmp_path: Path
) -> None:
    assert evaluate([*OWN, MANY], "--method", "self-ensemble")[0] == 0
    assert answered_ids(tmp_path / "run") == {"self-ensemble": ["q1", "q2", "many"]}


def test_each_number_of_choices_is_a_separate_task(evaluate: Any, tmp_path: Path) -> None:
    """A question that is too long with 28 choices can be asked with 2."""
    options = ("--method", "standard", "--skip-bad-rows", "--cut-to", "2,28")
    other = {**MANY, "id": "other", "choices": [*MANY["choices"][:27], "x", "y"]}
    message = evaluate([MANY, other], *options)
    assert_one_line(*message, ["mine-k28: standard: 28 choices in one prompt"])


def test_if_all_questions_fail_for_one_reason_no_question_is_named(evaluate: Any) -> None:
    more = {**MANY, "id": "more"}
    done = evaluate([MANY, more], "--method", "standard", "--skip-bad-rows")
    assert_one_line(*done, ["mine: standard: 30 choices in one prompt"])
    assert "line 1" not in done[2]


def test_a_long_id_is_quoted_by_its_beginning(evaluate: Any) -> None:
    done = evaluate([*OWN, {**MANY, "id": "x" * 100}], "--method", "standard")
    assert_one_line(*done, [f'line 3: question "{"x" * 36}...: standard: 30 choices'])


def test_a_single_question_that_fails_is_named(evaluate: Any) -> None:
    done = evaluate([MANY], "--method", "standard", "--skip-bad-rows")
    assert_one_line(*done, ['line 1: question "many": standard: 30 choices', "1 of 1 questions"])


def test_if_no_question_is_left_the_first_bad_one_is_named(evaluate: Any) -> None:
    done = evaluate([LONG, MANY], "--method", "standard", "--skip-bad-rows")
    assert_one_line(
        *done, ['line 1: question "long"', "2 of 2 questions cannot be asked; none is left)"]
    )


def test_a_variant_without_a_usable_question_is_left_out_with_methods_fitted_on_it(
    capsys: Any, llama_folder: Path
) -> None:
    lm = load(str(llama_folder))
    many = Question("Which?", MANY["choices"], "many", 1)
    sizes = {"group_size": 2, "trials": 1}
    variants = [
        Variant("standard", "standard"),
        Variant("ours", "self-ensemble", sizes),
        Variant("dirichlet", "dirichlet"),
        Variant("wide", "self-ensemble", {**sizes, "group_size": 28}),
    ]
    assert able(lm, variants, Task("mine", "own", [many], {})) == [variants[1]]
    why = "choices in one prompt, but only 26 labels (A-Z); use smaller groups)"
    assert capsys.readouterr().err.splitlines() == [
        f"minise: mine: left out: standard, dirichlet (30 {why}",
        f"minise: mine: left out: wide (29 {why}",
    ]
    few = replace(many, choices=many.choices[:3])
    assert able(lm, variants, Task("mine", "own", [many, few], {})) == variants
    assert capsys.readouterr().err == ""


def test_where_no_variant_is_left_the_run_itself_gives_the_reason(
    capsys: Any, llama_folder: Path
) -> None:
    long = Question(LONG["question"], LONG["choices"], "long", 0)
    variants = [Variant("standard", "standard"), Variant("ours", "self-ensemble")]
    task = Task("mine", "own", [long], {})
    lm = load(str(llama_folder))
    assert able(lm, variants, task) == variants
    assert capsys.readouterr().err == ""
    with pytest.raises(ValueError, match=r"mine: question \"long\": standard: a prompt has"):
        usable(lm, {0: [task]}, {"mine": variants}, skip=False)


def test_a_mask_that_is_too_large_for_memory_is_refused_before_the_run(
    llama_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from minise import InputError
    from minise.data.tasks import load_tasks

    lm = load(str(llama_folder))
    tasks = {0: load_tasks([str(write(tmp_path / "mine.json", OWN))])}
    variants = {"mine": [Variant("x", "self-ensemble", {"group_size": 2}, "dense")]}
    assert usable(lm, tasks, variants, skip=False) == tasks
    with monkeypatch.context() as watched:
        checked: list[int] = []
        watched.setattr("minise.evaluation.usable.check_mask_fits", checked.append)
        usable(lm, tasks, variants, skip=False)
        plans = [build(variants["mine"][0]).plan(lm, q, 0) for q in tasks[0][0].questions]
        assert checked == [plan.tokens("dense") for plan in plans]
    monkeypatch.setattr("minise.engines.free_bytes", lambda device: 1000)
    with pytest.raises(InputError, match="packed tokens need a mask"):
        usable(lm, tasks, variants, skip=False)
    tree = replace(variants["mine"][0], engine="tree")
    assert usable(lm, tasks, {"mine": [tree, Variant("y", "dirichlet")]}, skip=False) == tasks
