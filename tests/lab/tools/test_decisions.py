"""The page's tables are made from the records, and a record is what JevBench says of answers."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tools import decisions as tool


def test_the_page_has_every_table_and_none_is_older_than_the_records() -> None:
    """If one is: python -m tools.decisions tables."""
    page = tool.PAGE.read_text("utf-8")
    assert {*re.findall(r"<!-- table (\S+) -->", page)} == tool.tables().keys()
    assert page == tool.page()


def test_every_record_is_of_the_whole_suite_and_says_its_dtype() -> None:
    records = [path for path in tool.RECORDS.glob("*.jsonl.gz") if path.stem != "equal.jsonl"]
    _, tests_of_equal = tool.read_record(tool.RECORDS / "equal.jsonl.gz")
    for path in records:
        facts, tests = tool.read_record(path)
        assert facts["requests"] == 1248
        assert facts["dtype"] in ("float32", "bfloat16")
        assert [row["case"] for row in tests] == [row["case"] for row in tests_of_equal]


def row(dimension: str, relation: str, case: str, violated: bool) -> dict[str, Any]:
    return {"dimension": dimension, "relation": relation, "case": case, "violated": violated}


def one_law_each(violated: Sequence[str] = ()) -> list[dict[str, Any]]:
    """A case of each dimension."""
    return [row(name, f"{name}-law", "a", name in violated) for name in tool.DIMENSIONS]


def test_a_law_counts_once_in_its_dimension_and_a_dimension_once_overall() -> None:
    many = [row("CHO", "another law", "a", False) for _ in range(9)]
    found = tool.scores([*one_law_each(violated=["CHO"]), *many])
    assert found["CHO"] == 0.5
    assert found["BAT"] == 1
    assert found["overall"] == pytest.approx(0.9)


def test_an_interval_is_over_cases_and_not_over_their_tests() -> None:
    """Two cases, all kept or all violated: every share of 0, a half and 1 is drawn."""
    kept = one_law_each()
    broken = [{**one, "case": "b", "violated": True} for one in kept * 50]
    value, low, high = tool.with_intervals([*kept * 50, *broken])["overall"]
    assert (value, low, high) == (0.5, 0, 1)


def test_a_distance_from_equal_is_0_for_the_indifferent_and_1_for_the_certain() -> None:
    assert tool.from_equal({"type": "noul", "noul": 0.5}) == 0
    assert tool.from_equal({"type": "noul", "noul": 1.0}) == 1
    for shares, expected in (((0.25,) * 4, 0), ((1, 0, 0, 0), 1), ((0.5, 0.5, 0, 0), 2 / 3)):
        answer = {"type": "choice", "probabilities": dict(enumerate(map(float, shares)))}
        assert tool.from_equal(answer) == pytest.approx(expected)


def test_a_message_is_a_choice_and_right_where_its_intent_is_chosen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tool, "RECORDS", tmp_path)
    choices = ["card lost", "top up"]
    said = ['Where is "my" card?', "It is gone."]
    rows = tmp_path / "rows.jsonl"
    with rows.open("w") as file:
        for message in said:
            question = f"What is it? {json.dumps(message)}"
            file.write(json.dumps({"question": question, "choices": choices, "answer": 0}) + "\n")
    tool.write_messages(rows, tmp_path / "requests.jsonl")
    requests = [json.loads(line) for line in tool.lines(tmp_path / "requests.jsonl")]
    assert [request["state"] for request in requests] == said
    assert list(requests[0]["questions"]["intent"]["criteria"]) == choices
    answers = tmp_path / "answers.jsonl"
    with answers.open("w") as file:
        for choice in ("card lost", "top up"):
            file.write(json.dumps({"answers": {"intent": {"choice": choice}}, "tokens": 7}) + "\n")
    tool.write_right("qwen05-presence", "float32", rows, answers)
    assert json.loads((tmp_path / "right-qwen05-presence.json").read_text())["right"] == [
        True,
        False,
    ]
    assert "| 0.5B, `presence` | 2 | 50.0 [9.5, 90.5] | 7 |" in tool.table_of_right()


@pytest.mark.slow
def test_jevbench_finds_equal_probabilities_coherent_as_the_record_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("jevbench", reason="pip install jevbench")
    kept = (tool.RECORDS / "equal.jsonl.gz").read_bytes()
    monkeypatch.setattr(tool, "RECORDS", tmp_path)
    tool.write_record("equal", tool.equal, {})
    made = tool.read_record(tmp_path / "equal.jsonl.gz")
    (tmp_path / "kept.jsonl.gz").write_bytes(kept)
    assert made == tool.read_record(tmp_path / "kept.jsonl.gz")
