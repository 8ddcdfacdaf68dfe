"""`minise ask`: what it prints, for machines and for people."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import pytest

from tests.commands import Q, run


def test_json_is_the_contracts(capsys, llama_folder) -> None:
    status, out, err = run(
        capsys,
        "ask",
        "--model",
        llama_folder,
        *Q,
        "--group-size",
        2,
        "--trials",
        3,
        "--seed",
        5,
        "--engine",
        "dense",
        "--json",
    )
    assert (status, err) == (0, "")
    report = json.loads(out)
    assert set(report) == {
        "model",
        "method",
        "engine",
        "group_size",
        "trials",
        "seed",
        "question",
        "choices",
        "prediction",
        "lead",
        "balance",
        "groups",
        "tokens",
    }
    assert report["model"] == str(llama_folder)
    assert report["method"] == "self-ensemble"
    assert report["engine"] == "dense"
    assert (report["group_size"], report["trials"], report["seed"]) == (2, 3, 5)
    assert report["question"] == "Which is a bird?"
    assert [choice["text"] for choice in report["choices"]] == ["wren", "trout", "oak"]
    assert sum(choice["probability"] for choice in report["choices"]) == pytest.approx(1)
    scores = [choice["score"] for choice in report["choices"]]
    assert report["prediction"] == scores.index(max(scores))
    assert len(report["groups"]) == 6
    for group in report["groups"]:
        assert set(group) == {"choices", "probabilities", "null"}
        assert sum(group["probabilities"]) + group["null"] == pytest.approx(1)
    tokens = report["tokens"]
    assert tokens["separate"] > tokens["dense"] > tokens["tree"] > 0
    first, second = sorted(scores, reverse=True)[:2]
    assert report["lead"]["score"] == pytest.approx(first - second)
    assert report["lead"]["standard_error"] > 0
    assert all(choice["standard_error"] >= 0 for choice in report["choices"])


def test_it_says_how_precise_it_is(capsys, llama_folder) -> None:
    asked = ("ask", "--model", llama_folder, *Q, "--group-size", 2)
    _, out, _ = run(capsys, *asked, "--trials", 30)
    assert re.search(r"leads the next by 0\.\d+; the lead (exceeds|is within) its standard", out)
    _, out, _ = run(capsys, *asked, "--trials", 30, "--show-groups")
    assert len(re.findall(r"^ +\S.* 0\.\d+, standard error 0\.\d+$", out, re.M)) == 3
    for options in (("--trials", 1), ("--trials", 6, "--grouping", "balanced")):
        _, out, _ = run(capsys, *asked, *options)
        assert "its standard error cannot be told from these trials" in out
    assert "balance: pairs meet 2 times; each choice takes each label" in out


def test_text_shows_question_choices_answer_groups_and_tokens(capsys, llama_folder) -> None:
    status, out, _ = run(capsys, "ask", "--model", llama_folder, *Q, "--show-groups")
    assert status == 0
    assert out.startswith("Which is a bird?\n")
    for choice in ("wren", "trout", "oak"):
        assert f" {choice} " in out
    assert "\nAnswer: " in out
    assert "%" in out
    assert "20 trials of groups of 4 = 20 prompts" in out
    assert out.count("none of the above") == 20


def test_standard_inference_is_one_prompt(capsys, llama_folder) -> None:
    status, out, _ = run(
        capsys, "ask", "--model", llama_folder, *Q, "--method", "standard", "--json"
    )
    report = json.loads(out)
    assert status == 0
    assert report["method"] == "standard"
    assert (report["group_size"], report["trials"]) == (3, 1)
    assert [group["null"] for group in report["groups"]] == [None]


def test_without_a_question_a_built_in_one_is_asked(capsys, llama_folder) -> None:
    status, out, _ = run(capsys, "ask", "--model", llama_folder, "--trials", 1)
    assert status == 0
    assert out.startswith("What is the capital of Spain?")


def test_a_file_gives_the_same_as_the_options(capsys, llama_folder, tmp_path) -> None:
    path = tmp_path / "q.json"
    path.write_text(
        json.dumps({"question": "Which is a bird?", "choices": ["wren", "trout", "oak"]})
    )
    by_file = run(capsys, "ask", "--model", llama_folder, "--file", path, "--json")
    assert by_file == run(capsys, "ask", "--model", llama_folder, *Q, "--json")


def test_no_null_option_and_presets_reach_the_method(capsys, llama_folder) -> None:
    _, out, _ = run(capsys, "ask", "--model", llama_folder, *Q, "--no-null-option", "--json")
    assert {group["null"] for group in json.loads(out)["groups"]} == {None}
    _, out, _ = run(
        capsys,
        "ask",
        "--model",
        llama_folder,
        *Q,
        "--preset",
        "authors-code",
        "--group-size",
        2,
        "--json",
    )
    assert len(json.loads(out)["groups"]) == 20  # one draw a trial, not a partition


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
def test_every_dtype_answers(capsys, llama_folder, dtype: str) -> None:
    status, out, _ = run(capsys, "ask", "--model", llama_folder, *Q, "--dtype", dtype, "--json")
    assert status == 0
    total = sum(choice["probability"] for choice in json.loads(out)["choices"])
    assert total == pytest.approx(1)


def test_bars_are_plain_where_the_terminal_is(llama_folder) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "minise", "ask", "--model", llama_folder, *Q],
        capture_output=True,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        check=True,
    )
    assert b"#" in done.stdout


def test_exact_grouping_has_no_trials_and_no_sampling_error(capsys, llama_folder) -> None:
    exact = ("--grouping", "exact", "--group-size", 2)
    _, out, _ = run(capsys, "ask", "--model", llama_folder, *Q, *exact, "--json")
    report = json.loads(out)
    assert report["trials"] == 0
    assert len(report["groups"]) == 3 * 2 + 3
    assert {choice["standard_error"] for choice in report["choices"]} == {0.0}
    assert report["lead"]["standard_error"] == 0.0
    _, out, _ = run(capsys, "ask", "--model", llama_folder, *Q, *exact)
    assert "all orders of groups of 2 = 9 prompts" in out
