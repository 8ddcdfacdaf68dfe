"""Files in our own format become questions. No row is lost silently."""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from minise import InputError, Question
from minise.question_file import read_question
from tests.rows import OWN, QUESTIONS, SOUND, check_named, load, refusal, write


@pytest.mark.parametrize("kind", ["jsonl", "json", "csv", "parquet"])
def test_the_same_rows_are_the_same_questions_in_every_kind_of_file(
    tmp_path: Path, kind: str
) -> None:
    path = write(tmp_path / f"mine.{kind}", OWN)
    task = load(path)
    assert task.questions == QUESTIONS
    assert (task.name, task.dataset) == ("mine", "own")
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    assert task.source == {"file": str(path), "sha256": digest}
    assert task.skipped == []


@pytest.mark.parametrize("kind", ["jsonl", "json", "csv", "parquet"])
def test_without_an_id_it_is_the_hash_of_the_content(tmp_path: Path, kind: str) -> None:
    rows = [{**OWN[0], "id": None}, {name: OWN[1][name] for name in ("question", "choices")}]
    rows[1]["answer"] = 1
    wanted = [Question(row["question"], row["choices"]).id for row in rows]
    assert [q.id for q in load(write(tmp_path / f"mine.{kind}", rows)).questions] == wanted


def test_an_id_may_be_a_number_and_unknown_columns_are_ignored(tmp_path: Path) -> None:
    path = write(tmp_path / "mine.json", [{**OWN[0], "id": 7, "note": {"a": 1}}])
    assert [q.id for q in load(path).questions] == ["7"]


def test_csv_may_have_a_byte_order_mark_blank_lines_and_columns_in_any_order(
    tmp_path: Path,
) -> None:
    path = tmp_path / "mine.CSV"
    text = 'choice_2,answer,question,choice_1,choice_3\r\nb,1,"one\nq?",a,\r\n\r\ne,0,two?,d,f\r\n'
    path.write_bytes(b"\xef\xbb\xbf" + text.encode())
    assert [(q.text, q.choices, q.answer) for q in load(path).questions] == [
        ("one\nq?", ("a", "b"), 1),
        ("two?", ("d", "e", "f"), 0),
    ]


def test_json_and_csv_are_read_without_pyarrow_and_parquet_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    for kind in ("jsonl", "json", "csv"):
        assert load(write(tmp_path / f"mine.{kind}", OWN)).questions == QUESTIONS
    (tmp_path / "mine.parquet").write_bytes(b"PAR1")
    assert "pip install 'minise[eval]'" in refusal(str(tmp_path / "mine.parquet"))


def test_a_wrong_choice_may_stand_twice_as_in_published_data(tmp_path: Path) -> None:
    row = {**SOUND, "choices": ["a", "b", "b"]}
    assert load(write(tmp_path / "mine.jsonl", [row])).questions[0].choices == ("a", "b", "b")


# Bad rows


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"question": None}, "question is missing"),
        ({"question": 3}, "question is 3; it must be text"),
        ({"question": " "}, "question is empty"),
        ({"choices": None}, "choices is missing"),
        ({"choices": "abc"}, 'choices is "abc"; it must be a list'),
        ({"choices": ["a", 2]}, "choice 2 is 2; it must be text"),
        ({"choices": ["a", None]}, "choice 2 is null; it must be text"),
        ({"choices": ["a", " ", "c"]}, "choice 2 is empty"),
        ({"choices": ["a"]}, "at least 2 are needed"),
        ({"choices": []}, "at least 2 are needed"),
        ({"choices": ["a", "b", " a"]}, 'two choices are "a"'),
        ({"answer": None}, "answer is missing"),
        ({"answer": "A"}, 'answer is "A"; it must be a whole number'),
        ({"answer": True}, "answer is true; it must be a whole number"),
        ({"answer": 1.0}, "answer is 1.0; it must be a whole number"),
        ({"answer": 3}, "answer 3 is no choice; give an index from 0 to 2"),
        ({"answer": -1}, "answer -1 is no choice"),
        ({"id": 1.5}, "id is 1.5; it must be text"),
        ({"id": True}, "id is true; it must be text"),
        ({"id": "\ud800"}, "not UTF-8"),
        ({"question": "\ud800"}, "not UTF-8"),
        ({"choices": ["a", "\udcff"]}, "not UTF-8"),
        ({"question": "Which?\n" * 99, "choices": ["a", 2]}, "choice 2 is 2"),
        ({"question": "Which?\n" * 99, "choices": ["a"]}, "at least 2 are needed"),
    ],
)
def test_a_malformed_row_is_named_with_its_file_its_number_and_the_reason(
    tmp_path: Path, change: dict[str, Any], reason: str
) -> None:
    check_named(tmp_path / "mine.jsonl", {**SOUND, "id": "other", **change}, reason, SOUND)


def test_a_missing_field_and_a_line_that_is_no_object_are_named(tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    good = json.dumps(SOUND).encode()
    lines = [
        good,
        b'{"question": "Which?"}',
        b"",
        b'{"question": ',
        b"[1]",
        b'{"question": "caf\xe9", "choices": ["a", "b"], "answer": 0}',
        b'{"question": "n", "choices": ["a", "b"], "answer": 0, "note": "\xe9"}',
        b"[" * 100_000,
        good,
    ]
    path.write_bytes(b"\n".join(lines))
    task = load(path, skip_bad_rows=True)
    # A column that is not read may hold anything.
    assert [q.text for q in task.questions] == ["Which?", "n"]
    reasons = dict(entry.removeprefix(f"{path}, ").split(": ", 1) for entry in task.skipped)
    assert list(reasons) == [f"line {n}" for n in (2, 4, 5, 6, 8, 9)]
    assert reasons["line 2"] == "choices is missing"
    assert reasons["line 4"].startswith("not JSON")
    assert reasons["line 5"] == "is [1], not an object"
    assert "not UTF-8" in reasons["line 6"]
    assert reasons["line 8"].startswith("not JSON")
    assert reasons["line 9"].endswith("is in line 1 already")
    assert refusal(str(path)).startswith(f"{path}, line 2: choices is missing (6 bad rows in all)")


@pytest.mark.parametrize("kind", ["json", "csv", "parquet"])
def test_rows_are_counted_from_1_without_a_header(tmp_path: Path, kind: str) -> None:
    path = write(tmp_path / f"mine.{kind}", [OWN[0], OWN[1], {**OWN[0], "answer": 9}, OWN[1]])
    message = refusal(str(path))
    assert message.startswith(f"{path}, row 3: answer 9 is no choice")
    assert "2 bad rows in all, rows counted from 1 without the header" in message
    task = load(path, skip_bad_rows=True)
    assert task.questions == QUESTIONS
    assert task.skipped[1] == f'{path}, row 4: question "q2" is in row 2 already'


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"Which?,a,b", "has 3 cells, but the header 5"),
        (b"Which?,a,b,c,0,more", "has 6 cells, but the header 5"),
        (b"Which?,a,,c,0", "choice 2 is empty"),
        (b"Which?,a,,,0", "at least 2 are needed"),
        (b"Which?,,,,0", "at least 2 are needed"),
        (b"Which?,a,b,,2", "answer 2 is no choice"),
        (b"Which?,a,b,c,", "answer is empty"),
        (b"Which?,a,b,c,1.0", 'answer is "1.0"; it must be a whole number'),
        (b"Caf\xe9?,a,b,c,0", "not UTF-8"),
    ],
)
def test_a_malformed_row_of_csv_is_named(tmp_path: Path, line: bytes, reason: str) -> None:
    path = tmp_path / "mine.csv"
    header = b"question,choice_1,choice_2,choice_3,answer\n"
    path.write_bytes(header + b"Good?,a,b,,1\n" + line + b"\n")
    message = refusal(str(path))
    assert message.startswith(f"{path}, row 2: ")
    assert reason in message
    assert len(load(path, skip_bad_rows=True).skipped) == 1


def test_where_no_row_is_good_there_is_nothing_to_skip_to(tmp_path: Path) -> None:
    path = write(tmp_path / "mine.json", [{**SOUND, "answer": 9}] * 2)
    assert "none is good" in refusal(str(path), skip_bad_rows=True)
    path.write_text("[1, 2]")
    assert "row 1: is 1, not an object (2 bad rows" in refusal(str(path), skip_bad_rows=True)
    path.write_text("[null]")
    assert "row 1: is null, not an object (1 bad row" in refusal(str(path), skip_bad_rows=True)


# Bad files


@pytest.mark.parametrize(
    ("name", "content", "parts"),
    [
        ("mine.json", b"", ["is empty"]),
        ("mine.json", b"[]", ["is empty"]),
        ("mine.jsonl", b"\n \n", ["is empty"]),
        ("mine.csv", b"", ["is empty"]),
        ("mine.csv", b"\xef\xbb\xbf", ["is empty"]),
        ("mine.csv", b"question,choice_1,choice_2,answer\n", ["is empty"]),
        ("mine.parquet", b"", ["not readable as PARQUET"]),
        ("mine.parquet", b"PAR1 no more PAR1", ["not readable as PARQUET"]),
        ("mine.json", b"{", ["not readable as JSON"]),
        ("mine.json", b"[" * 100_000, ["not readable as JSON"]),
        ("mine.json", b"7", ["holds no object and no list"]),
        ("mine.csv", b'question,answer\n"never closed,1\n', ["not readable as CSV"]),
        ("mine.csv", b"question,answer,answer\nq,1,1\n", ['"answer" is there twice']),
        ("mine.csv", b"question,choice_0,choice_1,answer\nq,a,b,1\n", ["choice_1, choice_2, ..."]),
        ("mine.csv", b"question,choice_1,choice_3,answer\nq,a,b,1\n", ["choice_1, choice_2, ..."]),
        (
            "mine.csv",
            b"question;choice_1;choice_2;answer\nq;a;b;1\n",
            ["columns question;choice_1;choice_2;answer;", "question, choices, answer", "QASC"],
        ),
        ("mine.json", b"[{}]", ["columns missing", "question, choices, answer"]),
        ("mine.json", b'[{"question": "q", "answer": 1}]', ["columns question, answer;"]),
        ("mine.txt", b"question", ["is not a .jsonl, .json, .csv or .parquet file"]),
    ],
)
def test_a_file_that_cannot_be_read_is_refused_in_one_line(
    tmp_path: Path, name: str, content: bytes, parts: list[str]
) -> None:
    if name.endswith(".parquet"):
        pytest.importorskip("pyarrow")
    path = tmp_path / name
    path.write_bytes(content)
    for skip in (False, True):
        message = refusal(str(path), skip_bad_rows=skip)
        assert message.startswith(f"{path}: ")
        for part in parts:
            assert part in message


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    assert refusal("nothing.csv") == "nothing.csv: no such file"
    (tmp_path / "folder.json").mkdir()
    assert "not readable as JSON" in refusal(str(tmp_path / "folder.json"))
    assert "not readable as CSV" in refusal("\0.csv")


def test_two_parquet_columns_of_one_name_are_refused(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    table = pyarrow.table([["q"], [0], [1]], names=["question", "answer", "answer"])
    parquet.write_table(table, tmp_path / "mine.parquet")
    assert '"answer" is there twice' in refusal(str(tmp_path / "mine.parquet"))


class TestOneQuestion:
    """What `minise ask --file` reads: the same files, one row, the answer optional."""

    def test_a_file_that_is_not_there_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match=r"none\.json: no such file"):
            read_question(tmp_path / "none.json")

    @pytest.mark.parametrize(
        ("name", "content"),
        [
            ("q.json", '{"question": "Où?", "choices": ["ici", "là"], "answer": 1, "id": "x"}'),
            ("q.json", '[{"question": "Où?", "choices": ["ici", "là"], "answer": 1, "id": "x"}]'),
            ("q.jsonl", '{"question": "Où?", "choices": ["ici", "là"], "answer": 1, "id": "x"}'),
            ("q.csv", "id,question,choice_1,choice_2,answer\nx,Où?,ici,là,1\n"),
        ],
    )
    def test_it_is_read_from_a_file(self, tmp_path: Path, name: str, content: str) -> None:
        path = tmp_path / name
        path.write_text(content, encoding="utf-8")
        assert read_question(path) == Question("Où?", ["ici", "là"], id="x", answer=1)

    def test_it_needs_no_answer(self, tmp_path: Path) -> None:
        path = tmp_path / "q.json"
        path.write_text('{"question": "Q", "choices": ["a", "a"]}')
        assert read_question(path).answer is None

    @pytest.mark.parametrize(
        ("content", "complaint"),
        [
            ("{", "not readable as JSON"),
            ("[" * 100_000, "not readable as JSON"),
            ("[]", "is empty"),
            ("[7]", "holds no object"),
            ('[{"question": "Q"}, {"question": "R"}]', "holds 2 rows; give one question"),
            ('{"question": "Q"}', "choices is missing"),
            ('{"question": "Q", "choices": ["a", "b"], "anwser": 1}', 'unknown field "anwser"'),
            ('{"question": "Q", "choices": ["a"]}', "at least 2 are needed"),
            ('{"question": "Q", "choices": ["a", "b"], "answer": 2}', "answer 2 is no choice"),
        ],
    )
    def test_an_unusable_file_is_named(self, tmp_path: Path, content: str, complaint: str) -> None:
        path = tmp_path / "q.json"
        path.write_text(content)
        with pytest.raises(InputError, match=complaint) as error:
            read_question(path)
        assert str(error.value).startswith(str(path))
        assert "\n" not in str(error.value)
