"""The answers of `minise ask` as text for a person."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import pytest
import torch

from minise.method import Answer, Group, combine
from tests.support.commands import Q, run


def test_ask_says_how_precise_an_answer_is(capsys, llama_folder) -> None:
    command = ("ask", "--model", llama_folder, *Q, "--group-size", 2)
    _, out, _ = run(capsys, *command, "--trials", 30)
    assert re.search(
        r"\n  precision: the score of \w+, its mean probability in the prompts that list it, is "
        r"\d+\.\d%,\n    \d+\.\d percentage points more than that of the next, \w+\.\n"
        r"    The table above shows probabilities: each score divided by the sum of all scores\.\n",
        out,
    )
    _, out, _ = run(capsys, *command, "--trials", 30, "--show-groups")
    assert len(re.findall(r"^ +\S.* 0\.\d+$", out, re.M)) == 3


def test_the_table_and_the_precision_are_two_numbers_of_which_each_is_named(
    capsys, llama_folder
) -> None:
    """The score is what the precision says; the table has it divided by the sum of all scores."""
    command = ("ask", "--model", llama_folder, *Q, "--group-size", 2)
    report = json.loads(run(capsys, *command, "--json")[1])
    scores = [choice["score"] for choice in report["choices"]]
    first = report["choices"][report["prediction"]]
    assert first["probability"] == pytest.approx(first["score"] / sum(scores))
    out = run(capsys, *command)[1]
    assert f"in the prompts that list it, is {first['score']:.1%},\n" in out
    assert re.search(rf"^  {first['text']} .*> +{first['probability']:.1%}", out, re.M)


def test_text_shows_question_choices_answers_groups_and_tokens(capsys, llama_folder) -> None:
    status, out, _ = run(capsys, "ask", "--model", llama_folder, *Q, "--show-groups")
    assert status == 0
    assert out.startswith("Which is a bird?\n\n")
    for choice in ("wren", "trout", "oak"):
        assert re.search(rf"^  {choice} +[ >]  +\d+\.\d%.*%", out, re.M)  # in two columns
    assert re.search(r"^Standard inference answers: (wren|trout|oak)$", out, re.M)
    assert re.search(r"^Self-Ensemble answers: (wren|trout|oak)$", out, re.M)
    assert re.search(r"^  cost: 1 prompt with all 3 choices, \d+ tokens$", out, re.M)
    assert "\n  cost: 20 trials of one group with all 3 choices = 20 prompts,\n" in out
    assert f"\nModel: {llama_folder}\n" in out
    assert len(re.findall(r"^ +\d+  .*, none of the above \d+\.\d%$", out, re.M)) == 20


def answer_of(null: float, wren: float) -> Answer:
    """What every prompt of a fixture says: the two groups with and without the first choice."""
    rest = torch.tensor([(1 - null - wren) / 2] * 2, dtype=torch.float64)
    first = torch.tensor([wren], dtype=torch.float64)
    return combine(3, [Group((0, 1, 2), torch.cat([first, rest]), null)])


def test_none_of_the_above_has_a_row_and_a_plain_sentence(
    capsys, monkeypatch, llama_folder
) -> None:
    """The percentages of the choices are of their sum, which says nothing where it is near 0."""
    command = ("ask", "--model", llama_folder, *Q, "--method", "self-ensemble", "--trials", 1)
    monkeypatch.setattr("minise.method.mean_answer", lambda *_: answer_of(0.998, 0.001))
    _, out, _ = run(capsys, *command)
    assert "\n  none of the above     99.8%  mean of the prompts, not in the 100%\n" in out
    assert (
        "\nSelf-Ensemble answers: wren\n"
        "  The model says none of the above: it gives that 99.8% on average in the prompts that\n"
        "  list wren. No choice got more than 0.1% in any prompt. The percentages above only rank "
        "them.\n"
    ) in out
    assert json.loads(run(capsys, *command, "--json")[1])["null"] == 0.998
    monkeypatch.setattr("minise.method.mean_answer", lambda *_: answer_of(0.4, 0.5))
    _, out, _ = run(capsys, *command)
    assert "\n  none of the above     40.0%" in out
    assert "The model says none of the above" not in out


@pytest.mark.parametrize(
    ("more", "rows"), [((), 4), (("--method", "self-ensemble"), 4), (("--no-null-option",), 3)]
)
def test_the_percentages_of_all_rows_end_in_one_column(capsys, llama_folder, more, rows) -> None:
    _, out, _ = run(capsys, "ask", "--model", llama_folder, *Q, *more)
    table = [line for line in out.split("\n\n")[1].splitlines() if "%" in line]
    assert len(table) == rows
    assert len({[found.end() for found in re.finditer(r"\.\d%", line)][-1] for line in table}) == 1


def test_a_single_method_has_no_heading(capsys, llama_folder) -> None:
    command = ("ask", "--model", llama_folder, *Q)
    _, both, _ = run(capsys, *command)
    assert re.search("^ +Standard inference +Self-Ensemble$", both, re.M)
    _, one, _ = run(capsys, *command, "--method", "self-ensemble")
    assert not re.search("^ +Self-Ensemble$", one, re.M)


def test_none_of_the_above_has_no_row_without_the_null_option(capsys, llama_folder) -> None:
    _, out, _ = run(capsys, "ask", "--model", llama_folder, *Q, "--no-null-option")
    assert "none of the above" not in out


def test_a_question_with_its_answer_says_who_is_right(capsys, llama_folder, tmp_path) -> None:
    path = tmp_path / "q.json"
    for right in range(2):
        path.write_text(json.dumps({"question": "Why?", "choices": ["a", "b"], "answer": right}))
        _, out, _ = run(capsys, "ask", "--model", llama_folder, "--file", path)
        answers = re.findall(r"answers: ([ab]) \((right|wrong)\)$", out, re.M)
        assert len(answers) == 2
        for choice, verdict in answers:
            assert (choice == "ab"[right]) == (verdict == "right")


def test_bars_are_ascii_on_an_ascii_terminal(llama_folder) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "minise", "ask", "--model", llama_folder, *Q],
        capture_output=True,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        check=True,
    )
    assert b"#" in done.stdout


def test_escape_sequences_in_a_question_are_shown_as_text(capsys, llama_folder, tmp_path) -> None:
    path = tmp_path / "q.json"
    question = {"question": "Wh\x1b[2Jich?", "choices": ["wr\x1b[31men", "oa\x9bk", "elm\ttree"]}
    path.write_text(json.dumps(question))
    command = ("ask", "--model", llama_folder, "--file", path, "--trials", 1)
    status, out, _ = run(capsys, *command, "--show-groups")
    assert status == 0
    assert "Wh\\x1b[2Jich?" in out
    assert "wr\\x1b[31men" in out
    assert not {"\x1b", "\x9b"} & set(out)
    _, out, _ = run(capsys, *command, "--json")
    assert json.loads(out)["question"] == question["question"]


def test_the_prediction_is_green_where_it_is_right_and_red_where_it_is_wrong(
    capsys, llama_folder, tmp_path
) -> None:
    """With --color; neither a file nor a pipe gets a colour without it."""
    path = tmp_path / "q.json"
    question = {"question": "Why?", "choices": ["a\x1b[31m", "b"], "answer": 0}
    path.write_text(json.dumps(question))
    command = ("ask", "--model", llama_folder, "--file", path)
    _, plain, _ = run(capsys, *command)
    _, out, _ = run(capsys, *command, "--color", "always")
    assert "\x1b" not in plain
    assert re.sub("\x1b\\[[0-9]+m", "", out) == plain
    right = plain.count("(right)")
    assert right + plain.count("(wrong)") == 2
    assert len(re.findall("\x1b\\[32m> +[0-9.]+%  █+\x1b\\[0m", out)) == right
    assert len(re.findall("\x1b\\[31m> +[0-9.]+%  █+\x1b\\[0m", out)) == 2 - right
    _, out, _ = run(capsys, "ask", "--model", llama_folder, *Q, "--color", "always")
    assert len(re.findall("\x1b\\[1m> ", out)) == 2  # nobody said what is right


def test_json_has_no_colour(capsys, llama_folder) -> None:
    command = ("ask", "--model", llama_folder, *Q, "--json", "--color", "always")
    assert "\x1b" not in run(capsys, *command)[1]
