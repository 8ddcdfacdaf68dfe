"""`minise ask`: what it prints, for machines and for people."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence

import pytest
import torch

from minise.commands.run_ask import mean_null
from minise.method import Answer, Group, combine
from minise.methods.uncertainty import Uncertainty
from minise.tokenizer import Tokenizer
from tests.support.commands import Q, assert_one_line, run


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
    keys = {"model", "method", "engine", "group_size", "trials", "seed", "question", "choices"}
    keys |= {"prediction", "answer", "lead", "null", "null_beside_prediction", "balance", "groups"}
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
    first, second = sorted(scores, reverse=True)[:2]
    assert report["lead"]["score"] == pytest.approx(first - second)
    assert report["lead"]["standard_error"] > 0
    assert all(choice["standard_error"] >= 0 for choice in report["choices"])


def test_it_says_how_precise_it_is(capsys, llama_folder) -> None:
    asked = ("ask", "--model", llama_folder, *Q, "--group-size", 2)
    _, out, _ = run(capsys, *asked, "--trials", 30)
    assert re.search(
        r"\n  precision: in its prompts \w+ got \d+\.\d% on average, \d+\.\d percentage points "
        r"more than the next, \w+\.\n    Other random groups would change that by about \d+\.\d: "
        r"the answer (is stable|may change; more --trials would tell)\.\n",
        out,
    )
    _, out, _ = run(capsys, *asked, "--trials", 30, "--show-groups")
    assert len(re.findall(r"^ +\S.* 0\.\d+, standard error 0\.\d+$", out, re.M)) == 3
    for options in (("--trials", 1), ("--trials", 6, "--grouping", "balanced")):
        _, out, _ = run(capsys, *asked, *options)
        assert "How much other groups could change that cannot be told from these trials." in out
    assert "balance: pairs meet 2 times; each choice takes each label" in out


@pytest.mark.parametrize(("error", "verdict"), [(0.039, "is stable."), (0.041, "may change; ")])
def test_an_answer_is_stable_where_it_leads_by_two_standard_errors(
    capsys, monkeypatch, llama_folder, error: float, verdict: str
) -> None:
    known = Uncertainty(torch.zeros(3, dtype=torch.float64), 0.08, error)
    monkeypatch.setattr("minise.methods.uncertainty.uncertainty", lambda *_: known)
    _, out, _ = run(capsys, "ask", "--model", llama_folder, *Q)
    assert "8.0 percentage points more than the next, " in out
    assert f"would change that by about {100 * error:.1f}: the answer {verdict}" in out


def test_text_shows_question_choices_answers_groups_and_tokens(capsys, llama_folder) -> None:
    status, out, _ = run(capsys, "ask", "--model", llama_folder, *Q, "--show-groups")
    assert status == 0
    assert out.startswith("Which is a bird?\n\n")
    for choice in ("wren", "trout", "oak"):
        assert re.search(rf"^  {choice} +[ >]  +\d+\.\d%.*%", out, re.M)  # in two columns
    assert re.search(r"^Standard inference answers: (wren|trout|oak)$", out, re.M)
    assert re.search(r"^Self-Ensemble answers: (wren|trout|oak)$", out, re.M)
    assert re.search(r"^  cost: 1 prompt with all 3 choices, \d+ tokens$", out, re.M)
    assert "\n  cost: 20 trials of groups of 4 = 20 prompts,\n" in out
    assert f"\nModel: {llama_folder}\n" in out
    assert len(re.findall(r"^ +\d+  .*, none of the above \d+\.\d%$", out, re.M)) == 20


def test_both_methods_print_what_each_prints_alone(capsys, llama_folder) -> None:
    asked = ("ask", "--model", llama_folder, *Q, "--json")
    both, ours, standard = (
        json.loads(run(capsys, *asked, *method)[1])
        for method in ([], ["--method", "self-ensemble"], ["--method", "standard"])
    )
    assert both == {**ours, "standard": standard}


def test_with_too_many_choices_for_one_prompt_the_groups_are_asked_alone(
    capsys, llama_folder
) -> None:
    asked = ["ask", "--model", llama_folder, "--question", "Which?", "--trials", 1]
    for number in range(27):
        asked += ["--choice", f"c{number}"]
    status, out, err = run(capsys, *asked)
    assert (status, err) == (0, "")
    assert "\nNo standard inference: 27 choices in one prompt, but only 26 labels" in out
    report = json.loads(run(capsys, *asked, "--json")[1])
    assert "26 labels" in report["standard"]["left_out"]
    assert_one_line(*run(capsys, *asked, "--method", "standard"), ["26 labels"])


def answer_of(null: float, wren: float) -> Answer:
    """What every prompt of a fixture says: the two groups with and without the first choice."""
    rest = torch.tensor([(1 - null - wren) / 2] * 2, dtype=torch.float64)
    first = torch.tensor([wren], dtype=torch.float64)
    return combine(3, [Group((0, 1, 2), torch.cat([first, rest]), null)])


def test_none_of_the_above_has_a_row_and_a_plain_sentence(
    capsys, monkeypatch, llama_folder
) -> None:
    """The percentages of the choices are of their sum, which says nothing where it is near 0."""
    asked = ("ask", "--model", llama_folder, *Q, "--method", "self-ensemble", "--trials", 1)
    monkeypatch.setattr("minise.method.mean_answer", lambda *_: answer_of(0.998, 0.001))
    _, out, _ = run(capsys, *asked)
    assert "\n  none of the above     99.8%  mean of the prompts, not in the 100%\n" in out
    assert (
        "\nSelf-Ensemble answers: wren\n"
        "  The model says none of the above: it gives that 99.8% on average in the prompts that\n"
        "  list wren. No choice got more than 0.1% in any prompt. The percentages above only rank "
        "them.\n"
    ) in out
    assert json.loads(run(capsys, *asked, "--json")[1])["null"] == 0.998
    monkeypatch.setattr("minise.method.mean_answer", lambda *_: answer_of(0.4, 0.5))
    _, out, _ = run(capsys, *asked)
    assert "\n  none of the above     40.0%" in out
    assert "The model says none of the above" not in out


def test_groups_count_in_the_mean_of_none_of_the_above_by_their_weight() -> None:
    p = torch.tensor([0.5], dtype=torch.float64)
    groups = [Group((0,), p, 0.1, weight=1.0), Group((1,), p, 0.5, weight=3.0)]
    assert mean_null(groups) == pytest.approx(0.4)
    assert mean_null([Group((0,), p, None)]) is None


def test_without_the_null_option_it_has_no_row(capsys, llama_folder) -> None:
    _, out, _ = run(capsys, "ask", "--model", llama_folder, *Q, "--no-null-option")
    assert "none of the above" not in out


def test_prompts_are_shown_as_the_model_reads_them(capsys, llama_folder) -> None:
    asked = ("ask", "--model", llama_folder, *Q, "--group-size", 2, "--trials", 1)
    _, out, _ = run(capsys, *asked, "--show-prompts")
    assert re.findall(r"^--- .* ---$", out, re.M) == [
        "--- Standard inference, prompt 1 of 1 ---",
        "--- Self-Ensemble, prompt 1 of 2 ---",
        "--- Self-Ensemble, prompt 2 of 2 ---",
    ]
    whole = "Which is a bird?\n(A) wren\n(B) trout\n(C) oak\nAnswer:"
    assert whole in out
    assert out.count("None of the above\nAnswer:") == 2
    report = json.loads(run(capsys, *asked, "--show-prompts", "--json")[1])
    assert whole in report["standard"]["prompts"][0]
    assert len(report["prompts"]) == 2


def test_a_question_with_its_answer_says_who_is_right(capsys, llama_folder, tmp_path) -> None:
    path = tmp_path / "q.json"
    for right in range(2):
        path.write_text(json.dumps({"question": "Why?", "choices": ["a", "b"], "answer": right}))
        _, out, _ = run(capsys, "ask", "--model", llama_folder, "--file", path)
        given = re.findall(r"answers: ([ab]) \((right|wrong)\)$", out, re.M)
        assert len(given) == 2
        for choice, verdict in given:
            assert (choice == "ab"[right]) == (verdict == "right")


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
    assert "Every group was asked, so chance has no part in it." in out


def test_escape_sequences_in_a_question_are_shown_as_text(capsys, llama_folder, tmp_path) -> None:
    path = tmp_path / "q.json"
    question = {"question": "Wh\x1b[2Jich?", "choices": ["wr\x1b[31men", "oa\x9bk", "elm\ttree"]}
    path.write_text(json.dumps(question))
    asked = ("ask", "--model", llama_folder, "--file", path, "--trials", 1)
    status, out, _ = run(capsys, *asked, "--show-groups")
    assert status == 0
    assert "Wh\\x1b[2Jich?" in out
    assert "wr\\x1b[31men" in out
    assert not {"\x1b", "\x9b"} & set(out)
    _, out, _ = run(capsys, *asked, "--json")
    assert json.loads(out)["question"] == question["question"]


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        (["--trials", 10**9], ["1000000000 trials", "over the limit of 50,000 groups"]),
        (["--trials", 10**9, "--grouping", "exact"], ["over the limit of 50,000 groups"]),
        (["--choice", "x"] * 1001, ["has 1001 choices", "at most 1,000"]),
        (
            [*["--choice", "x"] * 200, "--group-size", 200, "--grouping", "balanced"],
            ["200 choices in one prompt, but only 26 labels"],
        ),
        (
            [*["--choice", "x"] * 201, "--grouping", "balanced"],
            ["a balanced grouping is for 200 choices at most"],
        ),
        (["--choice", "a", "--choice", "\udcff"], ["the choice 2 is not UTF-8"]),
        (["--choice", "x\x1b[2J" * 500], ["has 1 choice;"]),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_cannot_be_asked_is_refused_before_the_model_is_loaded(
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

    def encode(self: Tokenizer, given: Sequence[str]) -> list[list[int]]:
        texts.extend(given)
        return real(self, given)

    monkeypatch.setattr(Tokenizer, "encode", encode)
    long = ("--question", "x " * 10_000, "--choice", "a", "--choice", "b")
    for method in ("self-ensemble", "standard"):
        texts.clear()
        done = run(capsys, "ask", "--model", llama_folder, *long, "--method", method)
        assert_one_line(*done, ["a prompt has", "positions for 1024"])
        assert sum(len(text) > 1000 for text in texts) == 1
