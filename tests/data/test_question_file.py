"""Files in our own format become questions. No row is lost silently."""

from __future__ import annotations

import hashlib
import io
import json
import random
import sys
from pathlib import Path
from typing import Any

import pytest

from minise import InputError, Question
from minise.data.question_file import read_question
from tests.support.rows import OWN, QUESTIONS, SOUND, check_named, load, refusal, write


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


@pytest.mark.parametrize("coding", ["utf-16-le", "utf-16-be"])
def test_utf_16_is_read_by_its_byte_order_mark_and_named_without_one(
    tmp_path: Path, coding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "mine.csv"
    path.write_bytes("\ufeffquestion\tA\tB\tanswer\r\nOù?\tici\tlà\tB\r\n".encode(coding))
    wanted = Question("Où?", ["ici", "là"], answer=1)
    assert load(path).questions == [wanted]
    line = json.dumps({"question": "Où?", "choices": ["ici", "là"]}, ensure_ascii=False)
    content = f"\ufeff{line}\n{line}\n".encode(coding)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))
    with pytest.raises(InputError, match="standard input: holds 2 rows"):
        read_question(Path("-"))
    path.write_bytes(path.read_bytes()[2:])
    assert "UTF-16 without a byte order mark; save it as UTF-8" in refusal(str(path))


def test_json_and_csv_are_read_without_pyarrow_and_parquet_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    for kind in ("jsonl", "json", "csv"):
        assert load(write(tmp_path / f"mine.{kind}", OWN)).questions == QUESTIONS
    (tmp_path / "mine.parquet").write_bytes(b"PAR1")
    assert "pip install 'minise[eval]'" in refusal(str(tmp_path / "mine.parquet"))


def test_a_wrong_choice_may_occur_twice_as_in_published_data(tmp_path: Path) -> None:
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
        ({"answer": "D"}, 'answer "D" is not one of A-C'),
        ({"answer": "wren"}, "write a letter A-C, the choice's text, or an index from 0 to 2"),
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
        (b"Which?,a,b,,3", "answer 3 is no choice"),
        (b"Which?,a,b,c,", "answer is empty"),
        (b"Which?,a,b,c,1.0", 'answer "1.0" is no choice; write a letter'),
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


def test_a_file_without_a_good_row_is_refused_even_if_bad_rows_are_skipped(tmp_path: Path) -> None:
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
        (
            "mine.csv",
            b"question,answer,answer\nq,1,1\n",
            ['are called "answer"'],
        ),
        ("mine.csv", b"question,choice_0,choice_1,answer\nq,a,b,1\n", ["choice_1, choice_2, ..."]),
        ("mine.csv", b"question,choice_1,choice_3,answer\nq,a,b,1\n", ["choice_1, choice_2, ..."]),
        (
            "mine.csv",
            b"prompt;choice_1;choice_2;answer\nq;a;b;1\n",
            ['no column is called "question"; its columns are prompt, choice_1, choice_2, answer'],
        ),
        ("mine.csv", b"question,A,B,D,answer\nq,a,b,c,A\n", ["its choices are A, B, D; call them"]),
        ("mine.csv", b"question,A,B,option_a\nq,a,b,c\n", ["its choices are A, B, option_a;"]),
        (
            "mine.csv",
            b"question,A,B,a\nq,a,b,c\n",
            ['"a" and "A" have the same name; keep one'],
        ),
        ("mine.csv", b"question,n,q\nq,a,b\n", ["no column holds choices; call them"]),
        ("mine.json", b"[{}]", ['no column is called "question"; its columns are missing']),
        (
            "mine.json",
            b'[{"question": "q", "answer": 1}]',
            ["no column holds choices", "choice_1, choice_2, ...", "columns are question, answer"],
        ),
        ("mine.txt", b"question", ["is not a .jsonl, .json, .csv, .tsv or .parquet file"]),
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
    message = refusal(str(tmp_path / "folder.json"))
    assert "not readable as JSON (it is a folder or a device; give a file)" in message
    assert "not readable as CSV" in refusal("\0.csv")
    assert "not readable as CSV" in refusal("x" * 5000 + ".csv")


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="the system has no such device")
def test_a_device_that_never_ends_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "endless.jsonl").symlink_to("/dev/zero")
    assert "it is a folder or a device" in refusal(str(tmp_path / "endless.jsonl"))


def test_a_file_that_is_too_large_is_refused_before_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "large.jsonl"
    with path.open("wb") as file:
        file.truncate(300 << 20)  # a file of 300 MiB that takes no room
    assert "it holds 300 MiB, over the limit of 256" in refusal(str(path))


def test_values_are_quoted_in_part_and_escape_sequences_as_text(tmp_path: Path) -> None:
    """In the message, and in the list of skipped rows in results.json."""
    path = tmp_path / "mine.jsonl"
    rows = [SOUND, {**SOUND, "answer": "9" * 5000}, {**SOUND, "question": ["\x1b[2J", "\ud800"]}]
    write(path, rows)
    assert len(refusal(str(path))) < 300 + len(str(path))
    skipped = load(path, skip_bad_rows=True).skipped
    assert all(len(row) < 200 + len(str(path)) for row in skipped)
    assert "\\u001b[2J" in skipped[1]
    "".join(skipped).encode()  # no half of a surrogate pair


def test_a_csv_with_very_many_columns_is_read_at_once(tmp_path: Path) -> None:
    path = tmp_path / "wide.csv"
    path.write_text(",".join(f"c{i}" for i in range(60_000)) + "\n" + "," * 59_999 + "\n")
    assert "columns are c0, c1" in refusal(str(path))


def test_two_parquet_columns_of_one_name_are_refused(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    table = pyarrow.table([["q"], [0], [1]], names=["question", "answer", "answer"])
    parquet.write_table(table, tmp_path / "mine.parquet")
    assert 'are called "answer"' in refusal(str(tmp_path / "mine.parquet"))


class TestParquet:
    """Small files that are large in memory, and damaged ones."""

    @pytest.fixture(autouse=True)
    def small_limit(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """With the limit of 256 MiB these tests would take gigabytes."""
        monkeypatch.setattr("minise.data.question_file.MOST_MIB", 4)

    def refused(self, tmp_path: Path, table: Any, **options: Any) -> str:
        parquet = pytest.importorskip("pyarrow.parquet")
        path = tmp_path / "mine.parquet"
        parquet.write_table(table, path, compression="zstd", **options)
        assert path.stat().st_size < 50_000
        return refusal(str(path))

    @pytest.mark.parametrize("nested", [False, True])
    def test_a_text_that_occurs_a_thousand_times_is_counted_a_thousand_times(
        self, tmp_path: Path, nested: bool
    ) -> None:
        pyarrow = pytest.importorskip("pyarrow")
        large = "x" * 32_000
        table = pyarrow.table(
            {
                "question": pyarrow.array(["q" if nested else large] * 500),
                "choices": pyarrow.array([[large if nested else "a", "b"]] * 500),
                "answer": [0] * 500,
            }
        )
        # One page of the dictionary: the file then says nothing of the size.
        message = self.refused(tmp_path, table, dictionary_pagesize_limit=1 << 24)
        assert "it holds 15 MiB, over the limit of 4" in message

    def test_texts_that_compress_well_are_counted_in_full(self, tmp_path: Path) -> None:
        pyarrow = pytest.importorskip("pyarrow")
        table = pyarrow.table({"question": ["x" * 16_000] * 300, "answer": [0] * 300})
        message = self.refused(tmp_path, table, use_dictionary=False)
        assert "it holds 5 MiB, over the limit of 4" in message

    def test_more_than_a_million_rows_are_refused(self, tmp_path: Path) -> None:
        pyarrow = pytest.importorskip("pyarrow")
        nothing = pyarrow.nulls(1_000_001)
        table = pyarrow.table({"question": nothing, "choices": nothing, "answer": nothing})
        assert "it holds 1,000,001 rows; at most 1,000,000" in self.refused(tmp_path, table)

    def test_columns_that_are_not_needed_are_not_read(self, tmp_path: Path) -> None:
        pyarrow = pytest.importorskip("pyarrow")
        parquet = pytest.importorskip("pyarrow.parquet")
        columns = {name: [row[name] for row in OWN] for name in OWN[0]}
        other = ["x" * 4_000_000] * 2
        path = tmp_path / "mine.parquet"
        parquet.write_table(pyarrow.table({**columns, "other": other}), path, compression="zstd")
        assert load(path).questions == QUESTIONS

    def test_a_damaged_file_is_refused_in_one_line(self, tmp_path: Path) -> None:
        path = write(tmp_path / "mine.parquet", OWN)
        sound, draw, refused = path.read_bytes(), random.Random("damage"), 0
        for _ in range(150):
            content = bytearray(sound)
            for _ in range(draw.randrange(1, 4)):
                content[draw.randrange(len(content))] = draw.randrange(256)
            path.write_bytes(content[: draw.choice([len(content), draw.randrange(len(content))])])
            messages = []
            try:
                load(path)
            except InputError as error:
                messages.append(str(error))
            refused += len(messages)
            assert all(len(message.splitlines()) == 1 for message in messages)
        assert refused > 50


class TestOneQuestion:
    """What `minise ask --file` reads: the same files, one row, the answer optional."""

    def test_an_absent_file_is_named(self, tmp_path: Path) -> None:
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
    def test_one_question_is_read_from_a_file(
        self, tmp_path: Path, name: str, content: str
    ) -> None:
        path = tmp_path / name
        path.write_text(content, encoding="utf-8")
        assert read_question(path) == Question("Où?", ["ici", "là"], id="x", answer=1)

    def test_one_question_needs_no_answer(self, tmp_path: Path) -> None:
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
            ('{"question": "Q", "choices": ["a", "b"], "answer": "C"}', "is not one of A-B"),
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
