"""The tables of rivals: a difference that outlives the correction for all of them has a star, and
a sign in the first table."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from minise.report.results import Cell, Results
from tests.support.results import DIFFERENCE, cell, make
from tools.studies.rivals import accuracy, corrected_ps, main, read, record, signed

DOCS = Path(__file__).parents[2] / "docs" / "rivals"
TABLE = re.compile(r"(?:^\|.*\n)+", re.MULTILINE)
SECTIONS = (  # the tasks that stand beside each other in a table of the docs
    ("miniature-many-k4", "miniature-many-k8"),
    ("miniature-many-k16", "miniature-many-k24"),
    ("miniature-many-k50",),
    ("miniature-many-k100",),
    ("miniature-k8", "miniature-k8-none-wrong", "miniature-k8-none-right"),
)


def cells(*ps: float) -> list[Cell]:
    """A method for each p value, compared with Self-Ensemble and with another."""
    tasks: dict[str, Any] = {"q": {"self-ensemble": cell("self-ensemble")}}
    differences = []
    for number, p in enumerate(ps):
        name = f"m{number}"
        tasks["q"][name] = cell(name)
        differences.append({**DIFFERENCE, "a": name, "b": "self-ensemble", "mcnemar_p": p})
        differences.append({**DIFFERENCE, "a": name, "b": "other", "mcnemar_p": 0.0})
    return Results.from_json(make(None, tasks, differences={"q": differences})).cells


def test_holm_corrects_for_all_differences_from_self_ensemble_and_no_others() -> None:
    of_all = cells(0.01, 0.04, 0.03)
    corrected = corrected_ps(of_all)
    assert sorted(corrected.values()) == pytest.approx([0.03, 0.06, 0.06])
    texts = [accuracy(one, corrected) for one in of_all[1:]]
    assert texts == ["80.0 (+5.0 [-1.0, +11.0]*)", *["80.0 (+5.0 [-1.0, +11.0])"] * 2]
    assert [signed(one, corrected) for one in of_all] == ["80.0", "80.0 +", "80.0", "80.0"]
    of_all[1].differences[0]["accuracy"] = -0.05
    assert signed(of_all[1], corrected) == "80.0 -"


def test_a_record_stands_in_the_place_of_a_run_and_a_later_one_replaces_its_cells(
    tmp_path: Path,
) -> None:
    first, second = tmp_path / "first.jsonl", tmp_path / "second.jsonl"
    record(cells(0.01, 0.04, 0.03), first)
    record(cells(0.02), second)
    again = read([first])
    corrected = corrected_ps(again)
    assert [accuracy(one, corrected) for one in again[1:]] == [
        "80.0 (+5.0 [-1.0, +11.0]*)",
        *["80.0 (+5.0 [-1.0, +11.0])"] * 2,
    ]
    assert [one.differences[0]["mcnemar_p"] for one in read([first, second])[1:]] == [
        *(0.02, 0.04, 0.03),
    ]


def test_the_tables_of_one_task_are_corrected_for_the_differences_of_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of two differences with p = 0.03 neither outlives the correction, of one it does."""
    file = tmp_path / "cells.jsonl"
    one, other = cells(0.03), [replace(cell, task="other") for cell in cells(0.03)]

    def printed(of: list[Cell]) -> str:
        record(of, file)
        monkeypatch.setattr("sys.argv", ["rivals", str(file), "--task", "q"])
        main()
        return capsys.readouterr().out

    alone, of_two = printed(one), printed(one + other)
    assert "1 differences are corrected" in alone
    assert "2 differences are corrected" in of_two
    assert of_two.replace("2 diff", "1 diff") == alone.replace("80.0 +", "80.0").replace("*", "")
    assert "80.0 +" in alone
    assert "other" not in of_two


def test_the_tables_of_the_docs_are_what_the_tool_prints_of_the_recorded_cells(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """All are under one correction, also where a page shows some tasks alone."""
    recorded, page, details = (DOCS / name for name in ("cells.jsonl", "../rivals.md", "tables.md"))
    printed: set[str] = set()
    for tasks in SECTIONS:
        monkeypatch.setattr("sys.argv", ["rivals", str(recorded), "--task", *tasks])
        main()
        out = capsys.readouterr().out
        printed |= set(TABLE.findall(out))
    differences = out.split()[0]
    for path in (page, details):
        text = path.read_text(encoding="utf-8")
        tables = [one for one in TABLE.findall(text) if "what it is" not in one]
        assert len(tables) > 10
        assert [one for one in tables if one not in printed] == []
        assert f"{differences} differences" in " ".join(text.split())
