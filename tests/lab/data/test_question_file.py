"""Files become rows, and what is wrong with a file or a row is one line that says where."""

import csv
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from minise import Question
from minise.lab.data import question_file
from tests.lab.support.rows import OWN, QUESTIONS, SOUND, load, refusal, write


@pytest.mark.parametrize("kind", ["jsonl", "jsonl.gz", "json", "csv", "tsv", "parquet"])
def test_the_same_rows_are_the_same_questions_in_every_kind_of_file(
    tmp_path: Path, kind: str
) -> None:
    path = write(tmp_path / f"mine.{kind}", OWN)
    task = load(path)
    assert task.questions == QUESTIONS
    assert (task.name, task.dataset, task.origin) == ("mine", "own", str(path))
    if kind.startswith("json"):  # Banking77 may be questions already
        assert load(path, "banking77").questions == QUESTIONS


def test_one_object_is_one_question_and_other_columns_are_not_read(tmp_path: Path) -> None:
    path = tmp_path / "q.json"
    row = {"question": "Où?", "choices": ["ici", "là", "loin"], "id": 7, "note": {"a": "\ud800"}}
    path.write_text(json.dumps(row))
    assert load(path).questions == [Question("Où?", ["ici", "là", "loin"], "7")]


def test_without_an_id_it_is_the_hash_of_the_content(tmp_path: Path) -> None:
    rows = [{**OWN[0], "id": None}, {"question": "Up?", "choices": ["a", "b"], "answer": 1}]
    for kind in ("jsonl", "csv", "parquet"):
        found = load(write(tmp_path / f"mine.{kind}", rows)).questions
        wanted = [Question(row["question"], row["choices"]).id for row in rows]
        assert [question.id for question in found] == wanted


def test_csv_may_have_a_byte_order_mark_blank_lines_and_any_separator(tmp_path: Path) -> None:
    path = tmp_path / "mine.CSV"
    rows: list[list[object]] = [["choice_2", "answer", "question", "choice_1", "a, b; c"]]
    rows += [["b", 1, "one\nq, é?", "a", ""], [], ["e", 0, "two?", "d", ""]]
    for mark in (*",;\t", "sep=;"):
        with path.open("w", encoding="utf-8-sig", newline="") as file:
            if len(mark) > 1:  # as Excel writes it
                file.write(f"{mark}\r\n")
                mark = mark[-1]
            csv.writer(file, delimiter=mark).writerows(rows)
        questions = [(q.text, q.choices, q.answer) for q in load(path).questions]
        assert questions == [("one\nq, é?", ("a", "b"), 1), ("two?", ("d", "e"), 0)]


def test_only_parquet_needs_pyarrow_and_says_how_to_install_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("pyarrow", "pyarrow.parquet"):
        monkeypatch.setitem(sys.modules, module, None)
    for kind in ("jsonl", "jsonl.gz", "json", "csv"):
        assert load(write(tmp_path / f"mine.{kind}", OWN)).questions == QUESTIONS
    (tmp_path / "mine.parquet").write_bytes(b"PAR1")
    message = refusal(str(tmp_path / "mine.parquet"))
    assert "needs pyarrow" in message
    assert "python3 install.py eval" in message


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"question": " "}, "question"),
        ({"question": "\ud800"}, "question"),
        ({"question": "Which?\n" * 99, "choices": ["a"]}, "1 choice"),
        ({"choices": "abc"}, "choices"),
        ({"choices": ["a", " ", "c"]}, "choice 2"),
        ({"choices": ["x"] * 1001}, "1001"),
        ({"choices": ["a", "b", " a"]}, '"a"'),
        ({"answer": "D"}, '"D"'),
        ({"answer": 3}, '"3"'),
        ({"id": "\ud800"}, "id"),
        ({"id": "sound"}, "sound"),
    ],
)
def test_a_malformed_row_is_named_with_its_file_and_its_line(
    tmp_path: Path, change: dict[str, Any], named: str
) -> None:
    rows = [{**SOUND, "id": "sound"}, {**SOUND, "id": "other", **change}]
    path = write(tmp_path / "mine.jsonl", rows)
    message = refusal(str(path))
    assert message.startswith(f"{path}, line 2: ")
    assert named in message.removeprefix(str(path))


@pytest.mark.parametrize(
    ("name", "content", "named"),
    [
        ("mine.jsonl", b'{"question": "caf\xe9", "choices": ["a", "b"]}', "line 1 is not UTF-8"),
        ("mine.jsonl", b'\n{"question": ', "line 2: "),
        ("mine.jsonl", b'\n\n[1, "\\u001b"]', "line 3: is [1, "),
        ("mine.csv", b"question,A,B\nq,a,b\nq,a\n", "line 3 has"),
        ("mine.csv", b"question,A,B\nq,a,b\n\xe9,a,b\n", "line 3 is not UTF-8, perhaps Windows"),
        ("mine.csv", b"question,choices\nq,a; b; c\n", '"a; b; c"; give a list, as .jsonl has'),
        ("mine.csv", b"sep=;\nquestion;A;B\nq;a\n", "line 3 has"),
        ("mine.csv", b'question,A,B\n"never closed,a,b\n', "CSV"),
        ("mine.csv", b"question,A,B,D,answer\nq,a,b,c,A\n", '"a", "b", "d"'),
        ("mine.csv", b"question,A,B,option_a\nq,a,b,c\n", '"option_a"'),
        ("mine.csv", b"question,choice_0,choice_1\nq,a,b\n", '"choice_0"'),
        ("mine.csv", b"question,n,q\nq,a,b\n", "--columns"),
        ("mine.csv", b"prompt,A,B\nq,a,b\n", '"prompt"'),
        ("mine.csv", b",".join(b"c%d" % i for i in range(60_000)) + b"\n" + b"," * 59_999, '"c0"'),
        ("mine.json", b"[{}]", "--columns"),
        ("mine.json", b"[]", "is empty"),
        ("mine.csv", b"question,A,B\n", "is empty"),
        ("mine.txt", b"question", ".jsonl"),
    ],
)
def test_a_file_that_cannot_be_read_is_refused_in_one_line(
    tmp_path: Path, name: str, content: bytes, named: str
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    message = refusal(str(path))
    assert message.startswith(str(path))
    assert named in message.removeprefix(str(path))


def test_what_is_no_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "folder.json").mkdir()
    (tmp_path / "endless.jsonl").symlink_to("/dev/zero")
    for name in ("folder.json", "endless.jsonl", "missing.csv", "missing", "x" * 5000 + ".csv"):
        assert refusal(str(tmp_path / name)).startswith(str(tmp_path / name))
    assert "qasc" in refusal("quasc")


def test_a_file_that_is_too_large_is_refused_also_if_it_is_packed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(question_file, "MOST_FILE_BYTES", 1 << 20)
    for name in ("large.jsonl", "large.jsonl.gz"):
        path = write(tmp_path / name, [{**SOUND, "question": "x" * (2 << 20)}])
        assert "more than 1 MiB" in refusal(str(path))
