"""`minise ask`: its JSON, its options, and which questions it refuses."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Sequence

import pytest
import torch

from minise.commands.run_ask import mean_null
from minise.method import Group
from minise.tokenizer import Tokenizer
from tests.support.commands import Q, assert_one_line, run


def test_json_has_the_keys_of_the_contract(capsys, llama_folder) -> None:
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
    keys = {"model", "method", "engine", "group_size", "trials", "seed", "question", "choices"}
    keys |= {"prediction", "answer", "null", "null_beside_prediction", "groups"}
    keys |= {"dtype", "device", "quantize", "tokens"}
    assert set(report) == keys | {"standard"}
    assert set(report["standard"]) == keys
    assert report["standard"]["method"] == "standard"
    assert report["model"] == str(llama_folder)
    assert report["method"] == "self-ensemble"
    assert report["engine"] == "dense"
    assert (report["dtype"], report["device"], report["quantize"]) == ("float32", "cpu", None)
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


def test_both_methods_print_what_each_prints_alone(capsys, llama_folder) -> None:
    command = ("ask", "--model", llama_folder, *Q, "--json")
    both, ours, standard = (
        json.loads(run(capsys, *command, *method)[1])
        for method in ([], ["--method", "self-ensemble"], ["--method", "standard"])
    )
    assert both == {**ours, "standard": standard}


def test_with_too_many_choices_for_one_prompt_standard_inference_is_left_out(
    capsys, llama_folder
) -> None:
    command = ["ask", "--model", llama_folder, "--question", "Which?", "--trials", 1]
    for number in range(27):
        command += ["--choice", f"c{number}"]
    status, out, err = run(capsys, *command)
    assert (status, err) == (0, "")
    assert "\nNo standard inference: 27 choices in one prompt, but only 26 labels" in out
    report = json.loads(run(capsys, *command, "--json")[1])
    assert "26 labels" in report["standard"]["left_out"]
    assert_one_line(*run(capsys, *command, "--method", "standard"), ["26 labels"])


def test_none_of_the_above_is_a_mean_weighted_by_group() -> None:
    p = torch.tensor([0.5], dtype=torch.float64)
    groups = [Group((0,), p, 0.1, weight=1.0), Group((1,), p, 0.5, weight=3.0)]
    assert mean_null(groups) == pytest.approx(0.4)
    assert mean_null([Group((0,), p, None)]) is None


def test_prompts_are_shown_as_the_model_reads_them(capsys, llama_folder) -> None:
    command = ("ask", "--model", llama_folder, *Q, "--group-size", 2, "--trials", 1)
    _, out, _ = run(capsys, *command, "--show-prompts")
    assert re.findall(r"^--- .* ---$", out, re.M) == [
        "--- Standard inference, prompt 1 of 1 ---",
        "--- Self-Ensemble, prompt 1 of 2 ---",
        "--- Self-Ensemble, prompt 2 of 2 ---",
    ]
    whole = "Which is a bird?\n(A) wren\n(B) trout\n(C) oak\nAnswer:"
    assert whole in out
    assert out.count("None of the above\nAnswer:") == 2
    report = json.loads(run(capsys, *command, "--show-prompts", "--json")[1])
    assert whole in report["standard"]["prompts"][0]
    assert len(report["prompts"]) == 2


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
    assert out.startswith("What is the capital of Canada?")
    assert "docs/miniature.md" not in out  # those numbers are of the shipped model


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


def test_exact_grouping_has_no_trials(capsys, llama_folder) -> None:
    exact = ("--grouping", "exact", "--group-size", 2)
    _, out, _ = run(capsys, "ask", "--model", llama_folder, *Q, *exact, "--json")
    report = json.loads(out)
    assert report["trials"] == 0
    assert len(report["groups"]) == 3 * 2 + 3
    _, out, _ = run(capsys, "ask", "--model", llama_folder, *Q, *exact)
    assert "all orders of groups of 2 = 9 prompts" in out


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        (["--trials", 10**9], ["1000000000 trials", "over the limit of 50,000 groups"]),
        (["--trials", 10**9, "--grouping", "exact"], ["over the limit of 50,000 groups"]),
        (["--choice", "x"] * 1001, ["has 1001 choices", "at most 1,000"]),
        (
            [*["--choice", "x"] * 200, "--group-size", 200],
            ["200 choices in one prompt, but only 26 labels"],
        ),
        (["--choice", "a", "--choice", "\udcff"], ["the choice 2 is not UTF-8"]),
        (["--choice", "x\x1b[2J" * 500], ["has 1 choice;"]),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_question_that_cannot_be_asked_is_refused_before_the_model_is_loaded(
    capsys, options: list[object], parts: list[str]
) -> None:
    question = [] if "--choice" not in options else ["--question", "Which?"]
    done = run(capsys, "ask", "--model", "no/such/folder/at/all", *question, *options)
    assert_one_line(*done, parts)


def test_a_question_that_is_not_utf8_is_one_line(llama_folder) -> None:
    arguments = ["--question", b"caf\xe9?", "--choice", "a", "--choice", "b"]
    done = subprocess.run(
        [sys.executable, "-m", "minise", "ask", *arguments], capture_output=True, text=True
    )
    assert_one_line(done.returncode, done.stdout, done.stderr, ["the question is not UTF-8"])


def test_a_very_long_question_is_encoded_once(capsys, llama_folder, monkeypatch) -> None:
    """Hundreds of prompts that hold it would take a minute."""
    texts: list[str] = []
    real = Tokenizer.encode

    def encode(self: Tokenizer, batch: Sequence[str]) -> list[list[int]]:
        texts.extend(batch)
        return real(self, batch)

    monkeypatch.setattr(Tokenizer, "encode", encode)
    long = ("--question", "x " * 10_000, "--choice", "a", "--choice", "b")
    for method in ("self-ensemble", "standard"):
        texts.clear()
        done = run(capsys, "ask", "--model", llama_folder, *long, "--method", method)
        assert_one_line(*done, ["a prompt has", "positions for 1024"])
        assert sum(len(text) > 1000 for text in texts) == 1
