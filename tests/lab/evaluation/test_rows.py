"""A line of a samples file and run.json: what is wrong is one line with the file and the field."""

import json
from pathlib import Path
from typing import Any

import pytest

from minise.errors import InputError
from minise.lab.evaluation.facts import read_facts
from minise.lab.evaluation.rows import line_of
from tests.lab.evaluation.conftest import saved
from tests.lab.support.answers import read_answers

GROUP = {"choices": [1, 0], "probabilities": [0.2, 0.7], "null": 0.1, "trial": 0, "tokens": 9}
FULL = {**line_of(saved(1, [0.4, 0.6], 0)), "groups": [GROUP], "choices": ["x", "y"]}
OF_GROUP = [
    {"choices": [2, 0]},
    {"choices": [1]},
    {"probabilities": [0.2]},
    {"probabilities": None},
    {"null": "0"},
    {"trial": -1},
    {"tokens": 0},
]
WRONG: dict[str, list[Any]] = {
    "id": [7, None],
    "seed": ["0", 0.5, None, True],
    "cluster": [3],
    "question_hash": [None],
    "answer": [2, -1, "0", True, 1.0],
    "prediction": [2, -1, None],
    "normalized": [None, [], ["0.4", 0.6], [0.4, 0.7], [1.6, -0.6], [0.4, float("nan")]],
    "scores": [None, [0.4], [0.4, float("inf")], [0.4, None]],
    "label": [2, "A"],
    "logits": ["x", [], [None], [10**400]],
    "on_labels": [-0.1, "1"],
    "null": [2, []],
    "tokens": [0, -5, 9.5, None],
    "seconds": [-1, "1", float("inf")],
    "peak_bytes": [-1, 0.5],
    "groups": [{}, [1], [], *[[{**GROUP, **change}] for change in OF_GROUP]],
    "notes": [[], "x"],
    "question": [5],
    "choices": ["xy", ["x"], ["x", 2]],
}
CASES = [(name, value) for name, values in WRONG.items() for value in values]


@pytest.mark.parametrize(("name", "value"), CASES)
def test_a_wrong_field_is_named_with_its_file_and_its_line(
    tmp_path: Path, name: str, value: Any
) -> None:
    path = tmp_path / "samples.jsonl"
    path.write_text(f"{json.dumps(FULL)}\n{json.dumps({**FULL, name: value})}\n")
    with pytest.raises(InputError, match="line 2: ") as caught:
        read_answers(path)
    message = str(caught.value)
    assert message.startswith(str(path))
    assert "\n" not in message
    assert name in message or name == "groups"  # of a group its field is named


def test_an_answer_with_logits_and_no_seconds_is_refused(tmp_path: Path) -> None:
    """Without seconds it would be read as one made from others, and lose its logits."""
    line = {**FULL, "logits": [0.5, 0.25], "seconds": None}
    path = tmp_path / "samples.jsonl"
    path.write_text(json.dumps(line) + "\n")
    with pytest.raises(InputError, match="seconds is missing"):
        read_answers(path)


@pytest.mark.parametrize("text", ["", "{", "[]", "3", "null", "[" * 100_000, '{"id": "q"}'])
def test_what_is_no_answer_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "samples.jsonl"
    path.write_text(f"{text}\n")
    with pytest.raises(InputError, match="line 1: "):
        read_answers(path)


def test_an_answer_that_is_read_is_written_as_it_was(finished: Path) -> None:
    for path in finished.glob("samples-*.jsonl"):
        lines = [json.dumps(line_of(answer)) for answer in read_answers(path)]
        assert lines == path.read_text().splitlines()


def changed(whole: dict[str, Any], place: str, value: Any) -> str:
    """The JSON with another value at a place such as "tasks.words.hash"."""
    *holders, name = place.split(".")
    holder = whole
    for one in holders:
        holder = holder[one]
    holder[name] = value
    return json.dumps(whole)


@pytest.mark.parametrize(
    ("place", "values"),
    [
        ("model", [None, 3]),
        ("limit", [0, "6"]),
        ("seeds", [None, [], ["0"]]),
        ("shards", [None, 0, -1, 1.0, 10**9]),
        ("parameters", ["x", -1]),
        ("equal_bits", ["no"]),
        ("tasks", [None, [], {}, {"words": None}]),
        ("tasks.words.questions", [0, "6", None]),
        ("tasks.words.choices", [1, "4"]),
        ("tasks.words.options", [None]),
        ("tasks.words.methods", [None, {}, []]),
        ("tasks.words.methods.standard", [None, {}]),
        ("tasks.words.methods.standard.fitted", [None, 0]),
        ("tasks.words.methods.standard.settings", [[]]),
    ],
)
def test_what_is_wrong_in_run_json_is_named(
    finished: Path, tmp_path: Path, place: str, values: list[Any]
) -> None:
    path = tmp_path / "run.json"
    for value in values:
        path.write_text(changed(json.loads((finished / "run.json").read_text()), place, value))
        with pytest.raises(InputError) as caught:
            read_facts(path)
        message = str(caught.value)
        assert message.startswith(f"{path}: ")
        assert "\n" not in message


@pytest.mark.parametrize("text", ["", "{", "[]", "7", "{}", "[" * 100_000])
def test_what_is_no_run_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "run.json").write_text(text)
    with pytest.raises(InputError, match=r"run\.json: "):
        read_facts(tmp_path / "run.json")
