"""Task names and files become questions; nothing is drawn unseeded and no row is lost silently."""

from __future__ import annotations

import csv
import hashlib
import json
import random
import re
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub import errors as hub_errors

from minise import InputError, Question
from minise.evaluation.miniature import evaluation_questions
from minise.evaluation.tasks import DEFAULT_GROUPS, Task, default_groups, load_tasks
from tests.test_hub import COMMIT, OLDER, Answer, Hub, client

OWN: list[dict[str, Any]] = [
    {"id": "q1", "question": "Which flies?", "choices": ["wren", "trout", "oak"], "answer": 0},
    {"id": "q2", "question": "Which swims, é?", "choices": ["a, b", "trout"], "answer": 1},
]
QUESTIONS = [
    Question("Which flies?", ["wren", "trout", "oak"], id="q1", answer=0),
    Question("Which swims, é?", ["a, b", "trout"], id="q2", answer=1),
]
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
WRONG = set(TRUTHFUL_HUB["incorrect_answers"])


def write(path: Path, rows: list[Any]) -> Path:
    """Rows as a file of the kind that the path's ending says."""
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    elif path.suffix == ".json":
        path.write_text(json.dumps(rows), encoding="utf-8")
    elif path.suffix == ".csv":
        flat = [flattened(row) for row in rows]
        columns = dict.fromkeys(column for row in flat for column in row)
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, list(columns), restval="")
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


def load(path: Path, **options: Any) -> Task:
    [task] = load_tasks([str(path)], **options)
    return task


def refusal(*names: str, **options: Any) -> str:
    """The message with which tasks are refused, which is one line."""
    with pytest.raises(InputError) as caught:
        load_tasks(names, **options)
    message = str(caught.value)
    assert len(message.splitlines()) == 1
    return message


# Files of one's own


@pytest.mark.parametrize("kind", ["jsonl", "json", "csv", "parquet"])
def test_the_same_rows_are_the_same_questions_in_every_kind_of_file(
    tmp_path: Path, kind: str
) -> None:
    path = write(tmp_path / f"mine.{kind}", OWN)
    task = load(path)
    assert task.questions == QUESTIONS
    assert task.name == "mine"
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    assert task.source == {"file": str(path), "sha256": digest}
    assert task.skipped == []


@pytest.mark.parametrize("kind", ["jsonl", "json", "csv", "parquet"])
def test_without_an_id_it_is_the_hash_of_the_content(tmp_path: Path, kind: str) -> None:
    rows = [{**OWN[0], "id": None}, {name: OWN[1][name] for name in ("question", "choices")}]
    rows[1]["answer"] = 1
    wanted = [Question(row["question"], row["choices"]).id for row in rows]
    assert [q.id for q in load(write(tmp_path / f"mine.{kind}", rows)).questions] == wanted


def test_an_id_may_be_a_number_and_columns_nobody_knows_are_ignored(tmp_path: Path) -> None:
    path = write(tmp_path / "mine.json", [{**OWN[0], "id": 7, "note": {"a": 1}}])
    assert [q.id for q in load(path).questions] == ["7"]


def test_csv_may_have_a_mark_at_its_start_blank_lines_and_columns_in_any_order(
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


# The published layouts


@pytest.mark.parametrize("kind", ["jsonl", "json", "parquet"])
def test_qasc_is_known_by_its_columns(tmp_path: Path, kind: str) -> None:
    path = write(tmp_path / f"any.{kind}", [QASC])
    wanted = [Question(QASC["question"], ["salt", "temperature", "snow"], "qasc-dev-1", 1)]
    assert load(path).questions == wanted
    [task] = load_tasks(["qasc"], data=path)
    assert (task.name, task.questions) == ("qasc", wanted)


@pytest.mark.parametrize("kind", ["jsonl", "json", "parquet"])
def test_mmlu_pro_is_known_by_its_columns_and_its_task_is_biology_alone(
    tmp_path: Path, kind: str
) -> None:
    law = {**MMLU, "question_id": 3, "category": "law"}
    path = write(tmp_path / f"any.{kind}", [law, MMLU])
    wanted = Question(MMLU["question"], MMLU["options"], "2804", 1)
    assert [q.id for q in load(path).questions] == ["3", "2804"]
    assert load_tasks(["mmlu_pro_biology"], data=path)[0].questions == [wanted]


@pytest.mark.parametrize(
    ("kind", "row"),
    [("csv", TRUTHFUL_CSV), ("parquet", TRUTHFUL_HUB), ("jsonl", TRUTHFUL_HUB)],
)
def test_both_layouts_of_truthfulqa_give_the_best_answer_and_five_incorrect_ones(
    tmp_path: Path, kind: str, row: dict[str, Any]
) -> None:
    path = write(tmp_path / f"any.{kind}", [row])
    [task] = load_tasks(["truthfulqa"], data=path)
    [question] = task.questions
    assert question.answer is not None
    assert question.choices[question.answer] == "Not at all"
    assert len(question.choices) == 6
    assert set(question.choices) - {"Not at all"} < WRONG
    # The id is of all that the row holds, so that both layouts agree on it.
    whole = ["Not at all", *TRUTHFUL_HUB["incorrect_answers"]]
    assert question.id == Question(question.text, whole).id
    assert load(path).questions == [question]


def truthful(number: int, wrong: list[str]) -> dict[str, Any]:
    return {
        "Question": f"Number {number}?",
        "Best Answer": "right",
        "Incorrect Answers": ";".join(wrong),
    }


def test_a_truthfulqa_question_needs_five_different_incorrect_answers(tmp_path: Path) -> None:
    rows = [
        truthful(1, ["a", "b", "c", "d", "e"]),
        truthful(2, ["a", "b", "c", "d"]),
        truthful(3, ["a", "b", "c", "d", " d ", " ", ""]),
        truthful(4, ["a", "b", "c", "d", "e", "f"]),
        truthful(5, []),
    ]
    task = load(write(tmp_path / "t.csv", rows))
    assert [q.text for q in task.questions] == ["Number 1?", "Number 4?"]
    assert task.skipped == []  # they are sound, and not asked
    message = refusal(str(write(tmp_path / "few.csv", rows[1:3])))
    assert "no question" in message
    assert "4 incorrect answers, fewer than 5" in message


def test_truthfulqas_draws_are_of_the_seed_and_the_question_not_of_the_rows_order(
    tmp_path: Path,
) -> None:
    rows = [truthful(n, [f"w{i}" for i in range(9)]) for n in range(60)]
    shuffled = random.Random(0).sample(rows, 60)
    forth, back = (write(tmp_path / f"{i}.csv", r) for i, r in enumerate([rows, shuffled[:40]]))
    by_id = {q.id: q for q in load(forth).questions}
    for question in load(back).questions:
        assert question == by_id[question.id]
    other = load(forth, seed=1).questions
    assert [q.id for q in other] == list(by_id)
    assert all(by_id[q.id].choices != q.choices for q in other)
    # Every incorrect answer is drawn, and the right one stands everywhere.
    assert len({choice for q in by_id.values() for choice in q.choices}) == 10
    assert {q.answer for q in by_id.values()} == set(range(6))


def test_truthfulqas_draws_are_the_same_everywhere(tmp_path: Path) -> None:
    [question] = load(write(tmp_path / "t.csv", [TRUTHFUL_CSV]), seed=3).questions
    assert question.id == "c27b622d236b3d0e"
    assert question.choices == ("a year", "two hours", "an hour", "a day", "Not at all", "a month")


# Fewer choices


def eights(n: int) -> list[dict[str, Any]]:
    return [
        {"id": f"eight-{i}", "question": f"{i}?", "choices": [*"stuvwxyz"], "answer": i % 8}
        for i in range(n)
    ]


def test_each_question_of_fewer_choices_keeps_the_answer_and_is_nested_in_the_larger_ones(
    tmp_path: Path,
) -> None:
    path = write(tmp_path / "mine.json", eights(80))
    tasks = load_tasks([str(path)], num_choices=(2, 4, 6, 8))
    assert [task.name for task in tasks] == ["mine-k2", "mine-k4", "mine-k6", "mine-k8"]
    whole = load(path).questions
    assert tasks[-1].questions == whole
    for K, task in zip((2, 4, 6, 8), tasks, strict=True):
        for version, question in zip(task.questions, whole, strict=True):
            assert (version.id, version.text) == (question.id, question.text)
            assert len(version.choices) == K
            assert version.answer is not None
            assert version.choices[version.answer] == question.choices[question.answer or 0]
            assert sorted(version.choices) == list(version.choices)  # in their order
    for smaller, larger in pairwise(tasks):
        for few, many in zip(smaller.questions, larger.questions, strict=True):
            assert set(few.choices) < set(many.choices)
    # Chance decides which are kept: each choice stays somewhere, before and after the answer.
    of_v = [q for q in tasks[0].questions if q.choices[q.answer or 0] == "v"]
    assert len({choice for q in of_v for choice in q.choices}) > 4
    assert {q.answer for q in tasks[0].questions} == {0, 1}


def test_which_choices_are_kept_depends_on_seed_and_id_alone_and_is_the_same_everywhere(
    tmp_path: Path,
) -> None:
    rows = eights(40)
    forth = write(tmp_path / "forth.json", rows)
    back = write(tmp_path / "back.json", rows[:5:-1])
    kept = {q.id: q for q in load_tasks([str(forth)], num_choices=[4])[0].questions}
    for question in load_tasks([str(back)], num_choices=[4])[0].questions:
        assert question == kept[question.id]
    alone = load_tasks([str(forth)], num_choices=[2, 4], limit=3)[1].questions
    assert alone == list(kept.values())[:3]
    other = load_tasks([str(forth)], num_choices=[4], seed=1)[0].questions
    assert sum(q != kept[q.id] for q in other) > 30
    assert ["".join(q.choices) for q in alone] == ["stxy", "stvw", "tuvz"]


def test_a_question_of_voo_few_choices_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "mine.json", OWN)
    message = refusal(str(path), num_choices=[2, 3])
    assert '"q2" has 2 choices, not 3' in message
    assert "--choices" in message
    assert load_tasks([str(path)], num_choices=[3], options=3)[0].questions == QUESTIONS[:1]


def test_options_keeps_the_questions_with_exactly_that_many_choices(tmp_path: Path) -> None:
    path = write(tmp_path / "mine.json", OWN)
    assert load(path, options=3).questions == QUESTIONS[:1]
    assert load(path, options=2).questions == QUESTIONS[1:]
    assert "no question has exactly 10 choices; they have 2, 3" in refusal(str(path), options=10)


def test_limit_keeps_the_first_of_what_the_filters_leave(tmp_path: Path) -> None:
    path = write(tmp_path / "mine.json", [*OWN, *eights(5)])
    assert [q.id for q in load(path, limit=2, options=8).questions] == ["eight-0", "eight-1"]


# The miniature


def test_the_miniature_is_drawn_from_the_seed_and_says_what_facts_it_is_of() -> None:
    [task] = load_tasks(["miniature"], questions=30, seed=2, limit=20)
    assert task.questions == evaluation_questions(30, 8, seed=2)[:20]
    assert re.fullmatch("[0-9a-f]{64}", task.source.pop("facts_sha256"))
    assert task.source == {}
    tasks = load_tasks(["miniature"], questions=30, num_choices=(2, 5), limit=20)
    assert [t.name for t in tasks] == ["miniature-k2", "miniature-k5"]
    for K, task in zip((2, 5), tasks, strict=True):
        assert task.questions == evaluation_questions(30, K, seed=0)[:20]
    assert "2 to 8 choices, not 9" in refusal("miniature", num_choices=[9])


def test_default_groups_are_the_papers() -> None:
    assert DEFAULT_GROUPS["qasc"] == default_groups("qasc-k8") == default_groups("mine") == (4, 20)
    assert default_groups("truthfulqa") == default_groups("truthfulqa-k4") == (3, 6)
    assert default_groups("mmlu_pro_biology") == (5, 40)
    assert default_groups("miniature-k2") == (4, 20)


# Bad rows

SOUND = {"question": "Which?", "choices": ["a", "b", "c"], "answer": 0}
QASC_CHOICES = QASC["choices"]


@pytest.mark.parametrize(
    ("sound", "change", "reason"),
    [
        (SOUND, {"question": None}, "question is missing"),
        (SOUND, {"question": 3}, "question is 3; it must be text"),
        (SOUND, {"question": " "}, "question is empty"),
        (SOUND, {"choices": None}, "choices is missing"),
        (SOUND, {"choices": "abc"}, 'choices is "abc"; it must be a list'),
        (SOUND, {"choices": ["a", 2]}, "choice 2 is 2; it must be text"),
        (SOUND, {"choices": ["a", None]}, "choice 2 is null; it must be text"),
        (SOUND, {"choices": ["a", " ", "c"]}, "choice 2 is empty"),
        (SOUND, {"choices": ["a"]}, "at least 2 are needed"),
        (SOUND, {"choices": []}, "at least 2 are needed"),
        (SOUND, {"choices": ["a", "b", " a"]}, 'two choices are "a"'),
        (SOUND, {"answer": None}, "answer is missing"),
        (SOUND, {"answer": "A"}, 'answer is "A"; it must be a whole number'),
        (SOUND, {"answer": True}, "answer is true; it must be a whole number"),
        (SOUND, {"answer": 1.0}, "answer is 1.0; it must be a whole number"),
        (SOUND, {"answer": 3}, "answer 3 is no choice; give an index from 0 to 2"),
        (SOUND, {"answer": -1}, "answer -1 is no choice"),
        (SOUND, {"id": 1.5}, "id is 1.5; it must be text"),
        (SOUND, {"id": "\ud800"}, "not UTF-8"),
        (SOUND, {"question": "\ud800"}, "not UTF-8"),
        (SOUND, {"choices": ["a", "\udcff"]}, "not UTF-8"),
        (SOUND, {"question": "Which?\n" * 99, "choices": ["a", 2]}, "choice 2 is 2"),
        (QASC, {"id": None}, "id is missing"),
        (QASC, {"answerKey": "D"}, 'answerKey "D" is not one of the labels ["A", "B", "C"]'),
        (QASC, {"answerKey": ""}, "answerKey is empty"),
        (QASC, {"choices": ["a", "b"]}, 'choices is ["a", "b"]; it must be an object'),
        (QASC, {"choices": {"text": ["a", "b"]}}, "choices.label is missing"),
        (QASC, {"choices": {**QASC_CHOICES, "text": ["a", "b"]}}, "2 choices.text, but 3"),
        (QASC, {"choices": {**QASC_CHOICES, "label": ["A", "B", "B"]}}, "is not one of"),
        (MMLU, {"question_id": None}, "question_id is missing"),
        (MMLU, {"answer": "C"}, 'answer is "C", but answer_index 1'),
        (MMLU, {"answer_index": 3, "answer": "D"}, "answer 3 is no choice"),
        (MMLU, {"options": ["a", "a", "b"]}, 'two choices are "a"'),
        (TRUTHFUL_HUB, {"best_answer": None}, "best_answer is missing"),
        (TRUTHFUL_HUB, {"incorrect_answers": None}, "incorrect_answers is missing"),
        (TRUTHFUL_HUB, {"incorrect_answers": [*"abcde", 6]}, "incorrect_answers holds 6"),
        (TRUTHFUL_HUB, {"best_answer": " a day "}, 'two choices are "a day"'),
        (TRUTHFUL_CSV, {"Best Answer": ""}, "Best Answer is empty"),
        (TRUTHFUL_CSV, {"Best Answer": "a day"}, 'two choices are "a day"'),
    ],
)
def test_a_malformed_row_is_named_with_its_file_its_number_and_the_reason(
    tmp_path: Path, sound: dict[str, Any], change: dict[str, Any], reason: str
) -> None:
    path = write(tmp_path / "mine.jsonl", [sound, {**sound, "id": "other", **change}])
    message = refusal(str(path))
    assert message.startswith(f"{path}, line 2: ")
    assert reason in message
    assert "1 bad row in all" in message
    assert "--skip-bad-rows" in message
    task = load(path, skip_bad_rows=True)
    assert len(task.questions) == 1
    [skipped] = task.skipped
    assert skipped.startswith(f"{path}, line 2: ")
    assert reason in skipped


def test_a_field_that_a_row_lacks_is_missing_and_a_line_that_is_no_object_is_named(
    tmp_path: Path,
) -> None:
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
    assert [q.text for q in task.questions] == ["Which?", "n"]  # what is not read may be anything
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


def test_a_row_of_another_category_is_not_looked_at(tmp_path: Path) -> None:
    law = {**MMLU, "question_id": 3, "category": "law", "answer": "J"}
    path = write(tmp_path / "any.json", [law, MMLU, {**MMLU, "category": None}])
    message = refusal("mmlu_pro_biology", data=path)
    assert f"{path}, row 3: category is missing (1 bad row" in message
    only = write(tmp_path / "law.json", [law])
    assert "no question" in refusal("mmlu_pro_biology", data=only)
    assert 'category "law"' in refusal("mmlu_pro_biology", data=only)


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
        ("mine.json", json.dumps(SOUND).encode(), ["holds no list"]),
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
def test_a_file_that_cannot_be_read_is_refused_in_a_line(
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


def test_what_is_not_there_is_said_so(tmp_path: Path) -> None:
    assert refusal("nothing.csv") == "nothing.csv: no such file"
    assert "no such task; give qasc, truthfulqa, mmlu_pro_biology" in refusal("quasc")
    assert "no task is named" in refusal()
    (tmp_path / "folder.json").mkdir()
    assert "not readable as JSON" in refusal(str(tmp_path / "folder.json"))
    assert "not readable as CSV" in refusal("\0.csv")
    assert "no such task" in refusal("x" * 5000)


def test_requests_that_make_no_sense_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "mine.json", OWN)
    assert "none is named" in refusal("miniature", data=path)
    assert "none is named" in refusal(str(path), data=path)
    assert "several are named" in refusal("qasc", "truthfulqa", data=path)
    assert "several are named" in refusal("qasc", "truthfulqa", revision="v1")
    assert "none is named" in refusal(str(path), revision="v1")
    assert "leave it out" in refusal("qasc", data=path, revision="v1")
    assert "give QASC's: id, question, choices, answerKey" in refusal("qasc", data=path)
    assert "limit 0 is below 1" in refusal(str(path), limit=0)
    assert "number of questions 0 is below 1" in refusal("miniature", questions=0)
    assert "give 2 or more" in refusal(str(path), num_choices=[1])
    again = write(tmp_path / "mine.csv", OWN)
    assert 'two tasks are called "mine"' in refusal(str(path), str(again))
    assert 'two tasks are called "mine-k2"' in refusal(str(path), num_choices=[2, 2])


def test_a_file_at_hand_is_for_the_one_data_set_of_the_hub_that_is_named(tmp_path: Path) -> None:
    mine, qasc = write(tmp_path / "mine.json", OWN), write(tmp_path / "q.json", [QASC])
    tasks = load_tasks(["miniature", str(mine), "qasc"], data=qasc, questions=3)
    assert [task.name for task in tasks] == ["miniature", "mine", "qasc"]
    assert [len(task.questions) for task in tasks] == [3, 2, 1]
    assert tasks[2].source["file"] == str(qasc)


# The hub

FILES = {
    "qasc": ("allenai/qasc", "data/validation-00000-of-00001.parquet", QASC),
    "truthfulqa": (
        "truthfulqa/truthful_qa",
        "generation/validation-00000-of-00001.parquet",
        TRUTHFUL_HUB,
    ),
    "mmlu_pro_biology": ("TIGER-Lab/MMLU-Pro", "data/test-00000-of-00001.parquet", MMLU),
}


class DataAnswer(Answer):
    """The stand-in for the hub, where data sets have addresses of their own."""

    def answer(self) -> None:
        if not self.path.startswith("/datasets/"):
            return self.send(404, {})
        self.path = self.path.removeprefix("/datasets")
        return super().answer()


@pytest.fixture
def hub() -> Iterator[Hub]:
    with Hub() as server:
        server.RequestHandlerClass = DataAnswer
        yield server
        server.shutdown()


LOAD = (
    "import json, sys\n"
    "from minise.evaluation.tasks import load_tasks\n"
    "for name, revision in json.loads(sys.argv[1]):\n"
    "    [task] = load_tasks([name], revision=revision)\n"
    "    print(json.dumps([task.name, task.questions[0].id, task.source]))\n"
)


def test_the_hubs_files_are_fetched_and_their_commit_and_hash_recorded(
    hub: Hub, tmp_path: Path
) -> None:
    for repository, file, row in FILES.values():
        content = write(tmp_path / "hub.parquet", [row]).read_bytes()
        hub.files[repository, COMMIT] = {file: content}
    older = write(tmp_path / "old.parquet", [{**QASC, "id": "older"}]).read_bytes()
    hub.files["allenai/qasc", OLDER] = {FILES["qasc"][1]: older}

    asked = [(name, None) for name in FILES] + [("qasc", "old"), ("qasc", OLDER)]
    status, stdout, stderr = client(hub.url, tmp_path / "home", "-c", LOAD, json.dumps(asked))
    assert status == 0, stderr
    lines = [json.loads(line) for line in stdout.splitlines()]
    assert [name for name, _, _ in lines] == [*FILES, "qasc", "qasc"]
    first, *_, last, pinned = [identity for _, identity, _ in lines]
    assert (first, last, pinned) == ("qasc-dev-1", "older", "older")
    for (_, _, source), (_, revision) in zip(lines, asked, strict=True):
        commit = OLDER if revision else COMMIT
        assert source["revision"] == commit
        content = hub.files[source["repository"], commit][source["file"]]
        assert source["sha256"] == hashlib.sha256(content).hexdigest()


@pytest.mark.parametrize(
    ("error", "parts"),
    [
        (hub_errors.GatedRepoError, ["huggingface.co/datasets/allenai/qasc", "HF_TOKEN"]),
        (hub_errors.RepositoryNotFoundError, ["no such repository on the hub", "--data"]),
        (hub_errors.RevisionNotFoundError, ["has no revision v9"]),
        (hub_errors.LocalEntryNotFoundError, ["not in the cache", "give one by --data"]),
        (hub_errors.EntryNotFoundError, ["at v9: has no data/validation", "--data"]),
        (OSError, ["could not be fetched"]),
    ],
)
def test_what_the_hub_refuses_is_one_line_that_speaks_of_data(
    monkeypatch: pytest.MonkeyPatch, error: type[Exception], parts: list[str]
) -> None:
    def refuse(*_: Any, **__: Any) -> str:
        raise error.__new__(error)

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", refuse)
    message = refusal("qasc", revision="v9")
    assert message.startswith("allenai/qasc")
    assert "folder" not in message
    assert "safetensors" not in message
    for part in parts:
        assert part in message


def test_a_wrong_choice_may_stand_twice_as_published_data_have_it(tmp_path: Path) -> None:
    row = {**SOUND, "choices": ["a", "b", "b"]}
    (task,) = load_tasks([str(write(tmp_path / "mine.jsonl", [row]))])
    assert task.questions[0].choices == ("a", "b", "b")
