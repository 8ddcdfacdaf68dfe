"""The published files of QASC, TruthfulQA and MMLU-Pro become questions."""

import random
from pathlib import Path
from typing import Any

import pytest

from minise import Question
from minise.lab.data.datasets import DATASETS
from minise.lab.data.tasks import load_tasks
from tests.lab.support.rows import MMLU, QASC, TRUTHFUL_CSV, TRUTHFUL_HUB, load, refusal, write

NAMES = {"qasc": QASC, "truthfulqa": TRUTHFUL_HUB, "mmlu_pro_biology": MMLU}
CHOICES = QASC["choices"]


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_qasc_and_the_biology_of_mmlu_pro(tmp_path: Path, kind: str) -> None:
    path = write(tmp_path / f"any.{kind}", [QASC])
    wanted = Question(QASC["question"], ["salt", "temperature", "snow"], "qasc-dev-1", 1)
    assert load(path, "qasc").questions == [wanted]
    law = {**MMLU, "question_id": 3, "category": "law"}
    path = write(tmp_path / f"any.{kind}", [law, MMLU])
    wanted = Question(MMLU["question"], MMLU["options"], "2804", 1)
    assert load(path, "mmlu_pro_biology").questions == [wanted]


@pytest.mark.parametrize(
    ("kind", "row"), [("csv", TRUTHFUL_CSV), ("parquet", TRUTHFUL_HUB), ("jsonl", TRUTHFUL_HUB)]
)
def test_both_layouts_of_truthfulqa_give_the_best_answer_and_five_incorrect_ones(
    tmp_path: Path, kind: str, row: dict[str, Any]
) -> None:
    [question] = load(write(tmp_path / f"any.{kind}", [row]), "truthfulqa").questions
    assert question.choices[question.answer or 0] == "Not at all"
    wrong = TRUTHFUL_HUB["incorrect_answers"]
    assert len(question.choices) == 6
    assert {*question.choices} - {"Not at all"} < {*wrong}
    # The id comes from all answers of the row, so both layouts agree on it.
    assert question.id == Question(question.text, ["Not at all", *wrong]).id


@pytest.mark.parametrize(("kind", "column"), [("csv", "category"), ("parquet", "label_text")])
def test_banking77_has_the_intents_of_all_messages_as_choices(
    tmp_path: Path, kind: str, column: str
) -> None:
    intents, choices = ["card_arrival", "PIN_lost?"], ["card arrival", "PIN lost?"]
    rows = [{"text": f'Is it "{i}"?', column: intents[i // 20]} for i in range(40)]
    task = load(write(tmp_path / f"test.{kind}", rows), "banking77")
    text = 'What does this bank customer want? "Is it \\"{}\\"?"'
    assert {*task.questions} == {Question(text.format(i), choices, "", i // 20) for i in range(40)}
    assert [q.text for q in task.questions][:2] == [text.format(i) for i in (38, 6)]  # shuffled
    assert (task.group_size, task.trials, task.choices) == (8, 20, 2)
    path = write(tmp_path / "test.jsonl", [*rows, {"text": "What?", column: ""}])
    assert refusal(f"banking77@{path}").startswith(f"{path}, line 41: ")


def truthful(number: int, wrong: list[str]) -> dict[str, Any]:
    cells = {"Question": f"Number {number}?", "Best Answer": "right"}
    return cells | {"Incorrect Answers": ";".join(wrong)}


def test_a_truthfulqa_question_needs_five_different_incorrect_answers(tmp_path: Path) -> None:
    wrong = [[*"abcde"], [*"abcd"], [*"abcd", " d ", " ", ""], [*"abcdef"], []]
    rows = [truthful(number, each) for number, each in enumerate(wrong, 1)]
    task = load(write(tmp_path / "t.csv", rows), "truthfulqa")
    assert [q.text for q in task.questions] == ["Number 1?", "Number 4?"]
    few = write(tmp_path / "few.csv", rows[1:3])
    assert "no question" in refusal(f"truthfulqa@{few}")


def test_truthfulqas_draws_depend_on_seed_and_question_not_on_the_order_of_rows(
    tmp_path: Path,
) -> None:
    rows = [truthful(n, [f"w{i}" for i in range(9)]) for n in range(60)]
    shuffled = random.Random(0).sample(rows, 60)
    forth, back = (write(tmp_path / f"{i}.csv", r) for i, r in enumerate([rows, shuffled[:40]]))
    by_id = {q.id: q for q in load(forth, "truthfulqa").questions}
    for question in load(back, "truthfulqa").questions:
        assert question == by_id[question.id]
    other = load(forth, "truthfulqa", question_seed=1).questions
    assert [q.id for q in other] == list(by_id)
    assert all(by_id[q.id].choices != q.choices for q in other)
    # Every incorrect answer is drawn somewhere, and the right one stands at every place.
    assert len({choice for q in by_id.values() for choice in q.choices}) == 10
    assert {q.answer for q in by_id.values()} == set(range(6))
    path = write(tmp_path / "t.csv", [TRUTHFUL_CSV])
    [question] = load(path, "truthfulqa", question_seed=3).questions  # the same everywhere
    assert question.id == "c27b622d236b3d0e"
    assert question.choices == ("a year", "two hours", "an hour", "a day", "Not at all", "a month")


@pytest.mark.parametrize(
    ("name", "change", "named"),
    [
        ("qasc", {"answerKey": "D"}, "'D'"),
        ("qasc", {"choices": {"text": ["a", "b"]}}, "label"),
        ("qasc", {"choices": {**CHOICES, "text": ["a"]}}, "1"),
        ("mmlu_pro_biology", {"answer": "C"}, "answer_index"),
        ("mmlu_pro_biology", {"answer_index": 3, "answer": "D"}, "answer 3"),
        ("truthfulqa", {"incorrect_answers": [*"abcde", 6]}, "strip"),
        ("truthfulqa", {"best_answer": " a day "}, "'a day'"),
    ],
)
def test_a_malformed_row_is_named_with_its_file_and_its_line(
    tmp_path: Path, name: str, change: dict[str, Any], named: str
) -> None:
    sound = NAMES[name]
    identity = {"id": "x", "question_id": 1}
    path = write(tmp_path / "mine.jsonl", [sound, {**sound, **identity, **change}])
    message = refusal(f"{name}@{path}")
    assert message.startswith(f"{path}, line 2: ")
    assert named in message


def test_a_data_set_is_not_read_from_another_ones_file(tmp_path: Path) -> None:
    path = write(tmp_path / "mine.json", [MMLU])
    for name in ("qasc", "truthfulqa"):
        assert "published file" in refusal(f"{name}@{path}")
    assert "--columns" in refusal(str(path))  # and not as one's own, without a name


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("revision", ["", "@v9"])
def test_a_data_set_is_fetched_from_the_hub_and_its_commit_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, revision: str
) -> None:
    dataset, asked = DATASETS[name], list[Any]()
    (tmp_path / dataset.file).parent.mkdir()
    write(tmp_path / dataset.file, [NAMES[name]])

    def fetch(*arguments: Any) -> tuple[Path, str]:
        asked.append(arguments)
        return tmp_path, "c" * 40

    monkeypatch.setattr("minise.lab.data.tasks.fetch", fetch)
    [task] = load_tasks([f"{name}{revision}"])
    assert len(task.questions) == 1
    assert asked == [(f"datasets/{dataset.repository}", [dataset.file], revision[1:] or None)]
