"""The recipe of docs/evaluation.md, run: messages with an intent each become questions."""

import csv
import re
import shlex
from pathlib import Path

import pytest

pytest.importorskip("pandas", reason="the extra [eval] is missing")

from minise.commands.cli import main
from tests.lab.support.rows import load

PAGE = Path(__file__).parents[3] / "docs" / "evaluation.md"
MODEL = "weights/tiny-llama"
INTENTS = [f"intent {number:02}" for number in range(20)]


def test_predictions_become_columns_of_ones_own_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    section = PAGE.read_text("utf-8").partition("## Your own questions")[2]
    [table] = re.findall(r"```\n(id;.*?)^```", section, flags=re.MULTILINE | re.DOTALL)
    command = re.findall(r"^minise (eval .*)$", section, flags=re.MULTILINE)[0]
    merge = section.partition("columns of your table:")[2]
    recipe = re.findall(r"```python\n(.*?)^```", merge, flags=re.MULTILINE | re.DOTALL)[0]
    monkeypatch.chdir(tmp_path)
    Path("my.csv").write_text(table, "utf-8")
    assert main([*shlex.split(command), "--trials", "1", "--model", MODEL]) == 0
    exec(recipe, {})
    with open("merged.csv", newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [(row["id"], row["answer"]) for row in rows] == [("1", "B"), ("2", "B")]
    for row in rows:
        assert row["prediction"] in (row["A"], row["B"], row["C"], row["D"])


def test_a_table_of_messages_is_asked_with_all_intents_as_choices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    section = PAGE.read_text("utf-8").partition("**One list for all.**")[2]
    recipe = re.findall(r"```python\n(.*?)^```", section, flags=re.MULTILINE | re.DOTALL)[0]
    command = re.findall(r"^minise (eval .*)$", section, flags=re.MULTILINE)[0]
    monkeypatch.chdir(tmp_path)
    rows = [f'"Hello, {name}?",{name}\n' for name in [*INTENTS, *INTENTS[:2]]]  # two come twice
    Path("messages.csv").write_text("message,intent\n" + "".join(rows), "utf-8")
    exec(recipe, {})
    questions = load(Path("messages.jsonl"), columns="answer_text=intent").questions
    assert {tuple(question.choices) for question in questions} == {tuple(INTENTS)}
    assert [question.answer for question in questions] == [*range(20), 0, 1]
    assert main([*shlex.split(command), "--limit", "2", "--trials", "1", "--model", MODEL]) == 0
    assert "| messages | presence" in capsys.readouterr().out
