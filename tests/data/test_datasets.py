"""The published files of QASC, TruthfulQA and MMLU-Pro become questions; files of the hub are
fetched."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub import errors as hub_errors

from minise import Question
from minise.data.datasets import DATASETS
from minise.data.tasks import load_tasks
from tests.loading.test_source import COMMIT, OLDER, Answer, Hub, client
from tests.support.rows import (
    MMLU,
    QASC,
    TRUTHFUL_CSV,
    TRUTHFUL_HUB,
    check_named,
    load,
    refusal,
    write,
)

WRONG = set(TRUTHFUL_HUB["incorrect_answers"])
QASC_CHOICES = QASC["choices"]


@pytest.mark.parametrize("kind", ["jsonl", "json", "parquet"])
def test_qasc_is_recognised_by_its_columns(tmp_path: Path, kind: str) -> None:
    path = write(tmp_path / f"any.{kind}", [QASC])
    wanted = [Question(QASC["question"], ["salt", "temperature", "snow"], "qasc-dev-1", 1)]
    assert load(path).questions == wanted
    [task] = load_tasks([f"qasc@{path}"])
    assert (task.name, task.dataset, task.questions) == ("qasc", "qasc", wanted)


@pytest.mark.parametrize("kind", ["jsonl", "json", "parquet"])
def test_mmlu_pro_is_recognised_by_its_columns_and_only_biology_is_used(
    tmp_path: Path, kind: str
) -> None:
    law = {**MMLU, "question_id": 3, "category": "law"}
    path = write(tmp_path / f"any.{kind}", [law, MMLU])
    wanted = Question(MMLU["question"], MMLU["options"], "2804", 1)
    assert [q.id for q in load(path).questions] == ["3", "2804"]
    assert load_tasks([f"mmlu_pro_biology@{path}"])[0].questions == [wanted]


@pytest.mark.parametrize(
    ("kind", "row"),
    [("csv", TRUTHFUL_CSV), ("parquet", TRUTHFUL_HUB), ("jsonl", TRUTHFUL_HUB)],
)
def test_both_layouts_of_truthfulqa_give_the_best_answer_and_five_incorrect_ones(
    tmp_path: Path, kind: str, row: dict[str, Any]
) -> None:
    path = write(tmp_path / f"any.{kind}", [row])
    [task] = load_tasks([f"truthfulqa@{path}"])
    [question] = task.questions
    assert question.answer is not None
    assert question.choices[question.answer] == "Not at all"
    assert len(question.choices) == 6
    assert set(question.choices) - {"Not at all"} < WRONG
    # The id comes from all answers of the row, so both layouts agree on it.
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
    assert task.skipped == []  # the other rows are sound, but not asked
    message = refusal(str(write(tmp_path / "few.csv", rows[1:3])))
    assert "no question" in message
    assert "4 incorrect answers, fewer than 5" in message


def test_truthfulqas_draws_depend_on_seed_and_question_not_on_the_order_of_rows(
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
    # Every incorrect answer is drawn somewhere, and the right one stands at every place.
    assert len({choice for q in by_id.values() for choice in q.choices}) == 10
    assert {q.answer for q in by_id.values()} == set(range(6))


def test_truthfulqas_draws_are_the_same_everywhere(tmp_path: Path) -> None:
    [question] = load(write(tmp_path / "t.csv", [TRUTHFUL_CSV]), seed=3).questions
    assert question.id == "c27b622d236b3d0e"
    assert question.choices == ("a year", "two hours", "an hour", "a day", "Not at all", "a month")


# Bad rows


@pytest.mark.parametrize(
    ("sound", "change", "reason"),
    [
        (QASC, {"id": None}, "id is missing"),
        (QASC, {"answerKey": "D"}, 'answerKey "D" is not one of the labels ["A", "B", "C"]'),
        (QASC, {"answerKey": ""}, "answerKey is empty"),
        (QASC, {"choices": ["a", "b"]}, 'choices is ["a", "b"]; it must be an object'),
        (QASC, {"choices": {"text": ["a", "b"]}}, "choices.label is missing"),
        (QASC, {"choices": {**QASC_CHOICES, "text": ["a", "b"]}}, "2 choices.text, but 3"),
        (QASC, {"choices": {**QASC_CHOICES, "label": ["A", "B", "B"]}}, "is not one of"),
        (QASC, {"question": None}, "question is missing"),
        (MMLU, {"question_id": None}, "question_id is missing"),
        (MMLU, {"answer": "C"}, 'answer is "C", but answer_index 1'),
        (MMLU, {"answer_index": 3, "answer": "D"}, "answer 3 is no choice"),
        (MMLU, {"answer_index": -1}, "answer_index -1"),
        (MMLU, {"answer_index": 10**9}, "answer_index 1000000000"),
        (MMLU, {"options": None}, "options is missing"),
        (MMLU, {"options": ["a", "a", "b"]}, 'two choices are "a"'),
        (TRUTHFUL_HUB, {"question": 3}, "question is 3; it must be text"),
        (TRUTHFUL_HUB, {"best_answer": None}, "best_answer is missing"),
        (TRUTHFUL_HUB, {"incorrect_answers": None}, "incorrect_answers is missing"),
        (TRUTHFUL_HUB, {"incorrect_answers": [*"abcde", 6]}, "incorrect_answers holds 6"),
        (TRUTHFUL_HUB, {"best_answer": " a day "}, 'two choices are "a day"'),
        (TRUTHFUL_CSV, {"Question": " "}, "Question is empty"),
        (TRUTHFUL_CSV, {"Best Answer": ""}, "Best Answer is empty"),
        (TRUTHFUL_CSV, {"Best Answer": "a day"}, 'two choices are "a day"'),
    ],
)
def test_a_malformed_row_is_named_with_its_file_its_number_and_the_reason(
    tmp_path: Path, sound: dict[str, Any], change: dict[str, Any], reason: str
) -> None:
    check_named(tmp_path / "mine.jsonl", {**sound, "id": "other", **change}, reason, sound)


def test_a_row_of_another_category_is_not_checked(tmp_path: Path) -> None:
    law = {**MMLU, "question_id": 3, "category": "law", "answer": "J"}
    path = write(tmp_path / "any.json", [law, MMLU, {**MMLU, "category": None}])
    message = refusal(f"mmlu_pro_biology@{path}")
    assert f"{path}, row 3: category is missing (1 bad row" in message
    only = write(tmp_path / "law.json", [law])
    assert "no question" in refusal(f"mmlu_pro_biology@{only}")
    assert 'category "law"' in refusal(f"mmlu_pro_biology@{only}")


def test_a_file_for_a_data_set_must_have_its_columns(tmp_path: Path) -> None:
    path = write(tmp_path / "mine.json", [MMLU])
    assert "give QASC's: id, question, choices, answerKey" in refusal(f"qasc@{path}")
    message = refusal(f"truthfulqa@{path}")
    first = "TruthfulQA's: question, best_answer, incorrect_answers"
    assert f"{first}, or TruthfulQA's: Question, Best Answer, Incorrect Answers" in message


def test_a_row_that_is_no_object_is_refused_as_such(tmp_path: Path) -> None:
    path = write(tmp_path / "mine.json", [3])
    for name in (f"qasc@{path}", str(path)):
        message = refusal(name)
        assert message.startswith(f"{path}, row 1: is 3, not an object")


def test_unknown_columns_are_refused_with_the_names_to_use(tmp_path: Path) -> None:
    path = write(tmp_path / "mine.csv", [{"text": "Up?", "A": "yes"}])
    message = f'{path}: no column is called "question"; its columns are text, A'
    guess = '; if "text" holds the question: --columns question=text'
    assert refusal(str(path)) == message + guess
    path = write(
        tmp_path / "meine.csv", [{"Frage": "Oben?", "Antwort 1": "ja", "Antwort 2": "nein"}]
    )
    form = "; say which is which: --columns question=COLUMN,A=COLUMN,B=COLUMN,answer=COLUMN"
    assert refusal(str(path)).endswith("its columns are Frage, Antwort 1, Antwort 2" + form)
    path = write(tmp_path / "mine.csv", [{"question": "Up?", "remark": "x"}])
    wanted = "call them choice_1, choice_2, ... or A, B, ..., or write a list, choices"
    message = f"{path}: no column holds choices; {wanted} (its columns are question, remark)"
    assert refusal(str(path)) == message


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
    """A local server in place of the hub, where the addresses of data sets begin with /datasets."""

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


# As text: the hub's library reads its address when it is imported.
LOAD = """
import json
from minise.data.tasks import load_tasks
for name in {}:
    [task] = load_tasks([name])
    print(json.dumps([task.name, task.questions[0].id, task.source]))
"""


def test_the_hubs_files_are_fetched_and_their_commit_and_hash_recorded(
    hub: Hub, tmp_path: Path
) -> None:
    published = {name: (one.repository, one.file) for name, one in DATASETS.items()}
    assert published == {name: (repository, file) for name, (repository, file, _) in FILES.items()}
    for repository, file, row in FILES.values():
        content = write(tmp_path / "hub.parquet", [row]).read_bytes()
        hub.files[repository, COMMIT] = {file: content}
    older = write(tmp_path / "old.parquet", [{**QASC, "id": "older"}]).read_bytes()
    hub.files["allenai/qasc", OLDER] = {FILES["qasc"][1]: older}

    names = [*FILES, "qasc@old", f"qasc@{OLDER}"]
    status, stdout, stderr = client(hub.url, tmp_path / "home", exec, LOAD.format(names))
    assert status == 0, stderr
    lines = [json.loads(line) for line in stdout.splitlines()]
    assert [name for name, _, _ in lines] == [*FILES, "qasc", "qasc"]
    first, *_, last, pinned = [identity for _, identity, _ in lines]
    assert (first, last, pinned) == ("qasc-dev-1", "older", "older")
    for (_, _, source), name in zip(lines, names, strict=True):
        commit = OLDER if "@" in name else COMMIT
        assert source["revision"] == commit
        content = hub.files[source["repository"], commit][source["file"]]
        assert source["sha256"] == hashlib.sha256(content).hexdigest()


@pytest.mark.parametrize(
    ("error", "parts"),
    [
        (hub_errors.GatedRepoError, ["huggingface.co/datasets/allenai/qasc", "HF_TOKEN"]),
        (hub_errors.RepositoryNotFoundError, ["no such repository on the hub", "NAME@FILE"]),
        (hub_errors.RevisionNotFoundError, ["has no revision v9"]),
        (
            hub_errors.LocalEntryNotFoundError,
            ["not in the cache", "give a local file: --task"],
        ),
        (hub_errors.EntryNotFoundError, ["at v9: has no data/validation", "NAME@FILE"]),
        (OSError, ["could not be fetched"]),
    ],
)
def test_a_refusal_of_the_hub_is_one_line_about_the_data_set(
    monkeypatch: pytest.MonkeyPatch, error: type[Exception], parts: list[str]
) -> None:
    def refuse(*_: Any, **__: Any) -> str:
        raise error.__new__(error)

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", refuse)
    message = refusal("qasc@v9")
    assert message.startswith("allenai/qasc")
    assert "folder" not in message
    assert "safetensors" not in message
    for part in parts:
        assert part in message
