"""The page's tables are made from the records, and a record is what JevBench says of answers."""

import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from minise import LocalModel
from tools.studies import decisions as tool
from tools.studies import decisions_time

pytestmark = pytest.mark.slow


def test_the_page_has_every_table_and_none_is_older_than_the_records() -> None:
    """If one is: python -m tools.studies."""
    page = tool.PAGE.read_text("utf-8")
    assert {*re.findall(r"<!-- table (\S+) -->", page)} == tool.tables().keys()
    assert tool.texts() == {tool.PAGE: page}


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
    of_shares = (((0.25,) * 4, 0), ((1, 0, 0, 0), 1), ((0.5, 0.5, 0, 0), 2 / 3), ((2, 0, 0, 0), 1))
    for shares, expected in of_shares:
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
        for message, answer in zip([*said, "More."], (0, 1, 0), strict=True):
            question = f"What is it? {json.dumps(message)}"
            row = {"question": question, "choices": choices, "answer": answer}
            file.write(json.dumps(row) + "\n")
    monkeypatch.setattr(tool, "MESSAGES", 2)  # the third is left out
    tool.write_messages(rows, tmp_path / "requests.jsonl")
    requests = [json.loads(line) for line in tool.lines(tmp_path / "requests.jsonl")]
    assert [request["state"] for request in requests] == said
    assert list(requests[0]["questions"]["intent"]["criteria"]) == choices
    answers = tmp_path / "answers.jsonl"
    with answers.open("w") as file:
        for on_labels, tokens in ((0.2, 7), (0.4, 9)):
            intent = {"choice": "top up", "on_labels": on_labels}
            given = {"answers": {"intent": intent}, "tokens": tokens}
            file.write(json.dumps(given) + "\n")
    tool.write_right("qwen05-presence", "float32", rows, answers)
    assert json.loads((tmp_path / "right-qwen05-presence.json").read_text())["right"] == [
        False,
        True,
    ]
    assert "| 0.5B, `presence` | 2 | 50.0 [9.5, 90.5] | 8 | 30 |" in tool.table_of_right()


class Bench:
    """In the place of jevbench: a suite of two requests, and three outcomes of one law."""

    def __init__(self, deviations: Sequence[float], kind: str) -> None:
        self.deviations = deviations
        self.kind = kind

    def fake(self, name: str) -> Any:
        return self

    def ask(self, state: Any, questions: dict[str, Any]) -> dict[str, Any]:
        return {id: {"type": "noul", "noul": 0.5} for id in questions}

    def list_relations(self) -> list[dict[str, str]]:
        return [{"name": "law", "dimension": "REP"}]

    def evaluate(self, ask: Any, suite: str, **rest: Any) -> Any:
        for state, id in (("s", "a"), ("t", "b"), ("s", "c")):
            if rest.get("dimensions") != ["BAT"] or id == "c":
                ask(state, {id: {"type": "noul", "criteria": None}})
        outcomes = []
        for deviation in self.deviations:
            about = {"relation": "law", "case_id": "one", "trial_id": "one:0:x"}
            limit = {"tolerance_kind": self.kind, "tolerance": 0.2}
            outcomes.append({**about, **limit, "deviation": deviation})
        result = {"errors": [], "outcomes": outcomes, "jevbench_version": "0"}
        return SimpleNamespace(result=result, scores={"overall": 0.5, "pillars": {}})


@pytest.mark.parametrize(
    ("deviations", "kind", "violated"),
    [
        ((0.1, 0.1), "own", False),
        ((0.1, 0.1), "noise", True),  # which is allowed 0.05
        ((0.1, 0.3), "own", True),  # one outcome of a test is enough
        ((float("nan"),), "own", True),
    ],
)
def test_a_test_is_violated_where_one_deviation_is_over_its_tolerance(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, deviations: Any, kind: str, violated: bool
) -> None:
    bench = Bench(deviations, kind)
    monkeypatch.setitem(sys.modules, "jevbench", bench)
    monkeypatch.setattr(tool, "RECORDS", tmp_path)
    monkeypatch.setattr(tool, "scores", lambda rows: {"overall": 0.5})
    tool.write_record("one", bench.ask, {})
    _, [row] = tool.read_record(tmp_path / "one.jsonl.gz")
    assert row == {"dimension": "REP", "relation": "law", "case": "one", "violated": violated}


def test_requests_on_one_state_stand_in_a_row_and_answers_are_found_by_their_requests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without what is null; answers to other requests are refused."""
    bench = Bench((), "own")
    monkeypatch.setitem(sys.modules, "jevbench", bench)
    monkeypatch.setattr(tool, "RECORDS", tmp_path)
    monkeypatch.setattr(tool, "scores", lambda rows: {"overall": 0.5})
    requests = tmp_path / "requests.jsonl"
    tool.write_requests(requests)
    given = [json.loads(line) for line in tool.lines(requests)]
    assert [(one["state"], *one["questions"]) for one in given] == [
        ("s", "a"),
        ("s", "c"),
        ("t", "b"),
    ]
    assert given[0]["questions"] == {"a": {"type": "noul"}}
    answers = tmp_path / "answers.jsonl"
    lines = []
    for one in given:
        answer = {"answers": bench.ask(one["state"], one["questions"]), "tokens": 7}
        lines.append(json.dumps(answer) + "\n")
    answers.write_text("".join(lines))
    tool.write_report("one", "float32", requests, answers)
    facts, _ = tool.read_record(tmp_path / "one.jsonl.gz")
    assert (facts["requests"], facts["tokens"], facts["from_equal"]) == (3, 7, 0)
    answers.write_text("".join(reversed(lines)))
    with pytest.raises(AssertionError, match="other requests"):
        tool.write_report("one", "float32", requests, answers)
    with pytest.raises(SystemExit, match=r"tools\.studies\.decisions"):
        tool.main("reports")


def test_a_way_is_timed_in_every_round_and_its_first_is_not_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    taken = iter([9.0, 9.0, 1.0, 4.0, 3.0, 6.0, 2.0, 5.0])
    monkeypatch.setattr(decisions_time, "cpu_seconds", lambda run: next(taken))
    found = decisions_time.in_turn({"a": str, "b": str}, rounds=3)
    assert found == {"a": 2.0, "b": 5.0}


def test_the_large_request_has_so_many_tokens_and_the_first_questions(qwen: LocalModel) -> None:
    given = []
    for number in range(60):
        questions = {}
        for letter in "abc":  # of two requests in a row the same ids
            asked = {"type": "noul", "instructions": f"Is it {number}?"}
            questions[f"{letter}{number // 2}"] = asked
        given.append({"state": f"What is known of case {number}.", "questions": questions})
    found = decisions_time.large_request(qwen, given)
    assert len(qwen.tokenizer.encode([found["state"]])[0]) <= decisions_time.TOKENS
    ids = [f"{letter}{number}" for number in range(7) for letter in "abc"]
    assert list(found["questions"]) == ids[:20]
    assert found["questions"]["a3"]["instructions"] == "Is it 6?"


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
