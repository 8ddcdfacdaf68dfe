"""Two runs of the same command are compared answer by answer: tools/same_numbers.py."""

import json
import sys
from pathlib import Path

import pytest

from tools import same_numbers

LINE = {"id": "q", "seed": 0, "question_hash": "h", "prediction": 1, "normalized": [0.2, 0.8]}


def write(folder: Path, lines: list[dict]) -> None:
    folder.mkdir()
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (folder / "samples-t-m.jsonl").write_text(text)


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ({}, 0),
        ({"normalized": [0.2 + 1e-6, 0.8 - 1e-6]}, 0),
        ({"normalized": [0.2 + 1e-5, 0.8 - 1e-5]}, 1),
        ({"normalized": [float("nan"), 0.8]}, 1),
        ({"prediction": 0}, 1),
        ({"question_hash": "other"}, 1),
        (None, 1),  # a line more
        ("no file", 1),
    ],
    ids=str,
)
def test_another_number_prediction_or_question_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: dict | str | None, status: int
) -> None:
    write(tmp_path / "before", [LINE])
    if change is None:
        write(tmp_path / "after", [LINE, LINE])
    elif change == "no file":
        (tmp_path / "after").mkdir()
    else:
        write(tmp_path / "after", [{**LINE, **change}])
    monkeypatch.setattr(sys, "argv", ["x", str(tmp_path / "before"), str(tmp_path / "after")])
    assert same_numbers.main() == status


def test_two_empty_folders_are_not_the_same_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["x", str(tmp_path), str(tmp_path)])
    assert same_numbers.main() == 1
