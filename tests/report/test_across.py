"""Paired differences between runs that asked the same questions."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from minise.commands.cli import main
from tests.support.runs import arguments

for module in ("scipy", "sklearn", "matplotlib"):
    pytest.importorskip(module)

pytestmark = pytest.mark.usefixtures("undrawn")


def test_runs_are_compared_on_their_common_questions(
    model: Path, whole: Path, balanced: Path, tmp_path: Path, capsys
) -> None:
    capsys.readouterr()
    folders = [str(whole), str(balanced)]
    assert main(["report", *folders, "-o", str(tmp_path), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert [len(run["results"]["words"]) for run in report["runs"]] == [4, 2]
    name = model.name
    names = [tuple(d[x].removeprefix(f"{name}: ") for x in "ab") for d in report["differences"]]
    # standard answered alike in both; cyclic and vector-scaling are in the first alone.
    assert names == [
        ("standard", "cyclic"),
        ("standard", "vector-scaling"),
        ("self-ensemble (grouping=balanced)", "self-ensemble (grouping=random)"),
        ("self-ensemble (grouping=balanced)", "cyclic"),
        ("self-ensemble (grouping=balanced)", "vector-scaling"),
    ]
    ours = report["differences"][2]
    accuracy = [run["results"]["words"]["self-ensemble"]["accuracy"] for run in report["runs"]]
    assert ours["accuracy"] == pytest.approx(accuracy[1] - accuracy[0])
    assert (ours["task"], ours["questions"]) == ("words", 30)
    assert "Paired differences between runs" in (tmp_path / "report.md").read_text()


def test_runs_are_not_compared_on_other_questions(
    model: Path, data: Path, whole: Path, tmp_path: Path, capsys
) -> None:
    rows = [json.loads(line) for line in data.read_text().splitlines()]
    for row in rows[:10]:
        row["question"] = f"Not {row['question']}"
    changed = tmp_path / "words.jsonl"
    changed.write_text("".join(json.dumps(row) + "\n" for row in rows))
    folder = tmp_path / "changed"
    assert main(arguments(model, changed, folder, "--method", "cyclic", "--trials", 2)) == 0
    capsys.readouterr()
    assert main(["report", str(whole), str(folder), "-o", str(tmp_path), "--json"]) == 0
    differences = json.loads(capsys.readouterr().out)["differences"]
    # The twenty that are the same were answered alike by cyclic in both.
    assert {d["questions"] for d in differences} == {20}
    assert {d["a"].split(": ")[1] for d in differences} == {"cyclic"}
    assert not any(d["b"].endswith("cyclic") for d in differences)
