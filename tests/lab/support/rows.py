"""Rows of every published layout, files of rows, and what tests of tasks do with them."""

import csv
import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from minise import InputError, Question
from minise.lab.data.tasks import Selection, Task, load_tasks

OWN: list[dict[str, Any]] = [
    {"id": "q1", "question": "Which flies?", "choices": ["wren", "trout", "oak"], "answer": 0},
    {"id": "q2", "question": "Which swims, é?", "choices": ["a, b", "trout"], "answer": 1},
]
QUESTIONS = [
    Question("Which flies?", ["wren", "trout", "oak"], id="q1", answer=0),
    Question("Which swims, é?", ["a, b", "trout"], id="q2", answer=1),
]
SOUND = {"question": "Which?", "choices": ["a", "b", "c"], "answer": 0}
QASC: dict[str, Any] = {
    "id": "qasc-dev-1",
    "question": "What varies by altitude?",
    "choices": {"text": ["salt", "temperature", "snow"], "label": ["A", "B", "C"]},
    "answerKey": "B",
    "fact1": "",
    "formatted_question": "not read",
}
MMLU: dict[str, Any] = {
    "question_id": 2804,
    "question": "Where do cells divide?",
    "options": ["in muscle", "in a shoot tip", "in a petal"],
    "answer": "B",
    "answer_index": 1,
    "cot_content": "",
    "category": "biology",
    "src": "not read",
}
TRUTHFUL_CSV: dict[str, Any] = {
    "Type": "Adversarial",
    "Category": "Sport",
    "Question": "How long should you wait?",
    "Best Answer": "Not at all",
    "Best Incorrect Answer": "an hour",
    "Correct Answers": "Not at all; You need not wait",
    "Incorrect Answers": "an hour; two hours; a day;an hour; ; a week; a month; a year;",
    "Source": "https://example.org",
}
TRUTHFUL_HUB: dict[str, Any] = {
    "type": "Adversarial",
    "category": "Sport",
    "question": "How long should you wait?",
    "best_answer": "Not at all",
    "correct_answers": ["Not at all", "You need not wait"],
    "incorrect_answers": ["an hour", "two hours", "a day", "a week", "a month", "a year"],
    "source": "https://example.org",
}


def write(path: Path, rows: list[Any]) -> Path:
    """Write rows as a file of the kind that the path's ending names."""
    kind = path.name.removesuffix(".gz").rpartition(".")[2]
    if kind == "jsonl":
        content = "".join(json.dumps(row) + "\n" for row in rows).encode()
        path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    elif kind == "json":
        path.write_text(json.dumps(rows), encoding="utf-8")
    elif kind in ("csv", "tsv"):
        flat = [flattened(row) for row in rows]
        columns = dict.fromkeys(column for row in flat for column in row)
        with path.open("w", encoding="utf-8", newline="") as file:
            delimiter = "," if kind == "csv" else "\t"
            writer = csv.DictWriter(file, list(columns), restval="", delimiter=delimiter)
            writer.writeheader()
            writer.writerows(flat)
    else:
        pyarrow = pytest.importorskip("pyarrow")
        parquet = pytest.importorskip("pyarrow.parquet")
        parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    return path


def flattened(row: dict[str, Any]) -> dict[str, Any]:
    choices = {f"choice_{i}": text for i, text in enumerate(row.get("choices", []), 1)}
    return {name: value for name, value in row.items() if name != "choices"} | choices


def load(path: Path, name: str = "", **selection: Any) -> Task:
    """The task of a file; name: the data set that it is of."""
    [task] = load_tasks([f"{name}@{path}" if name else str(path)], Selection(**selection))
    return task


def refusal(*names: str, **selection: Any) -> str:
    """The message with which `load_tasks` refuses. It must be one line."""
    with pytest.raises(InputError) as caught:
        load_tasks(names, Selection(**selection))
    message = str(caught.value)
    assert len(message.splitlines()) == 1
    assert len(message) < 700 + sum(map(len, names))
    return message
