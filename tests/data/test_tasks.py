"""Names and files become tasks. Every draw is seeded."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import FrozenInstanceError
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from minise.data.miniature import evaluation_questions, held_out, load_facts
from minise.data.tasks import TASKS, Selection, Task, load_tasks
from tests.support.rows import MMLU, OWN, QASC, QUESTIONS, TRUTHFUL_HUB, load, refusal, write

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
    tasks = load_tasks([str(path)], Selection(cut_to=(2, 4, 6, 8)))
    assert [task.name for task in tasks] == ["mine-k2", "mine-k4", "mine-k6", "mine-k8"]
    assert [task.choices for task in tasks] == [2, 4, 6, 8]
    assert {task.dataset for task in tasks} == {"own"}
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
    # Which choices are kept is random: before and after the answer, and not always the same.
    of_v = [q for q in tasks[0].questions if q.choices[q.answer or 0] == "v"]
    assert len({choice for q in of_v for choice in q.choices}) > 4
    assert {q.answer for q in tasks[0].questions} == {0, 1}


def test_the_choices_of_a_smaller_question_depend_only_on_seed_and_id(
    tmp_path: Path,
) -> None:
    rows = eights(40)
    forth = write(tmp_path / "forth.json", rows)
    back = write(tmp_path / "back.json", rows[:5:-1])
    by_id = {q.id: q for q in load(forth, cut_to=[4]).questions}
    for question in load(back, cut_to=[4]).questions:
        assert question == by_id[question.id]
    alone = load_tasks([str(forth)], Selection(cut_to=[2, 4], limit=3))[1].questions
    assert alone == list(by_id.values())[:3]
    other = load(forth, cut_to=[4], seed=1).questions
    assert sum(q != by_id[q.id] for q in other) > 30
    assert ["".join(q.choices) for q in alone] == ["stxy", "stvw", "tuvz"]


def test_a_question_with_too_few_choices_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "mine.json", OWN)
    message = refusal(str(path), cut_to=[2, 3])
    assert '"q2" has 2 choices, not 3' in message
    assert "--cut-to K" in message
    assert "--only-choices K" in message
    assert load(path, cut_to=[3], only_choices=3).questions == QUESTIONS[:1]


def test_only_choices_keeps_the_questions_with_exactly_that_many(tmp_path: Path) -> None:
    path = write(tmp_path / "mine.json", OWN)
    assert load(path, only_choices=3).questions == QUESTIONS[:1]
    assert load(path, only_choices=2).questions == QUESTIONS[1:]
    message = refusal(str(path), only_choices=10)
    assert "no question has exactly 10 choices; they have 2, 3" in message


def test_the_limit_is_applied_after_the_filters(tmp_path: Path) -> None:
    path = write(tmp_path / "mine.json", [*OWN, *eights(5)])
    assert [q.id for q in load(path, limit=2, only_choices=8).questions] == ["eight-0", "eight-1"]


# Facts of a task


def test_a_task_states_the_number_of_choices_if_it_is_the_same(tmp_path: Path) -> None:
    path = write(tmp_path / "mine.json", OWN)
    assert load(path).choices is None  # 3 and 2
    assert load(path, only_choices=3).choices == 3
    assert load(path, limit=1).choices == 3
    assert [task.choices for task in load_tasks(["miniature"], Selection(questions=3))] == [8]


def test_group_size_and_trials_are_the_papers(tmp_path: Path) -> None:
    rows = {"qasc": QASC, "truthfulqa": TRUTHFUL_HUB, "mmlu_pro_biology": MMLU}
    for name, sizes in {"qasc": (4, 20), "truthfulqa": (3, 6), "mmlu_pro_biology": (5, 40)}.items():
        path = write(tmp_path / f"{name}-rows.json", [rows[name]])
        name_of_file = f"{name}@{path}"
        for task in load_tasks([name_of_file]) + load_tasks([name_of_file], Selection(cut_to=[2])):
            assert (task.dataset, task.group_size, task.trials) == (name, *sizes)
    for task in load_tasks(["miniature"], Selection(questions=3, cut_to=[2, 8])):
        assert (task.group_size, task.trials) == (4, 20)
    mine = load(write(tmp_path / "mine.json", OWN))
    assert (mine.group_size, mine.trials) == (4, 20)


def test_a_users_file_is_no_published_data_set_even_if_it_has_its_name(tmp_path: Path) -> None:
    path = write(tmp_path / "truthfulqa.json", OWN)
    task = load(path)
    assert (task.name, task.dataset, task.group_size, task.trials) == ("truthfulqa", "own", 4, 20)
    path = write(tmp_path / "qasc.jsonl", [QASC])
    assert load(path).dataset == "own"
    assert load_tasks([f"qasc@{path}"])[0].dataset == "qasc"


# The miniature


def test_the_miniature_is_drawn_from_the_seed_and_records_the_hash_of_its_facts() -> None:
    [task] = load_tasks(["miniature"], Selection(questions=30, seed=2, limit=20))
    assert task.questions == evaluation_questions(30, 8, seed=2)[:20]
    assert re.fullmatch("[0-9a-f]{64}", task.source.pop("facts_sha256"))
    assert task.source == {}
    tasks = load_tasks(["miniature"], Selection(questions=30, cut_to=(2, 5), limit=20))
    assert [t.name for t in tasks] == ["miniature-k2", "miniature-k5"]
    assert [(t.dataset, t.choices) for t in tasks] == [("miniature", 2), ("miniature", 5)]
    for K, task in zip((2, 5), tasks, strict=True):
        assert task.questions == evaluation_questions(30, K, seed=0)[:20]
    assert "2 to 8 choices, not 9" in refusal("miniature", cut_to=[9])
    assert len(load_tasks(["miniature"])[0].questions) == 1000


# Requests


def test_an_unknown_name_is_refused() -> None:
    assert f"no such task; give {', '.join(TASKS)}, or a" in refusal("quasc")
    assert "no such task; give qasc, truthfulqa, mmlu_pro_biology" in refusal("quasc")
    assert "no task is named" in refusal()
    assert "no such task" in refusal("x" * 5000)


def test_contradictory_requests_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "mine.json", OWN)
    assert "give QASC's: id, question, choices, answerKey" in refusal(f"qasc@{path}")
    assert "qasc@: names nothing after the @; give a revision or a file" in refusal("qasc@")
    assert "missing.parquet: no such file" in refusal("qasc@missing.parquet")
    assert "miniature@v1: no such task" in refusal("miniature@v1")
    assert "limit 0 is below 1" in refusal(str(path), limit=0)
    assert "number of questions 0 is below 1" in refusal("miniature", questions=0)
    assert "make 100,000 at most" in refusal("miniature", questions=10**9)
    assert '"q1" has 3 choices, not 1000000000' in refusal(str(path), cut_to=[10**9])
    assert "give 2 or more" in refusal(str(path), cut_to=[1])
    again = write(tmp_path / "mine.csv", OWN)
    assert 'two tasks are called "mine"' in refusal(str(path), str(again))
    assert 'two tasks are called "mine-k2"' in refusal(str(path), cut_to=[2, 2])


def test_a_data_set_can_be_read_from_a_local_file(tmp_path: Path) -> None:
    mine, qasc = write(tmp_path / "mine.json", OWN), write(tmp_path / "q.json", [QASC])
    tasks = load_tasks(["miniature", str(mine), f"qasc@{qasc}"], Selection(questions=3))
    assert [task.name for task in tasks] == ["miniature", "mine", "qasc"]
    assert [len(task.questions) for task in tasks] == [3, 2, 1]
    assert tasks[2].source["file"] == str(qasc)


def test_a_file_whose_name_has_an_at_sign_is_a_file(tmp_path: Path) -> None:
    path = write(tmp_path / "mine@home.json", OWN)
    assert load(path).name == "mine@home"


def test_a_selection_cannot_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        Selection().limit = 3  # type: ignore[misc]


def test_a_task_of_the_hub_names_repository_file_and_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "rows.json", [QASC])
    monkeypatch.setattr("minise.data.tasks.dataset_file", lambda *arguments: (path, arguments[2]))
    [task] = load_tasks(["qasc@abc"])
    file = "data/validation-00000-of-00001.parquet"
    assert task.places == {"qasc-dev-1": f"allenai/qasc, {file}, row 1"}
    assert re.fullmatch("[0-9a-f]{64}", task.source.pop("sha256"))
    assert task.source == {"repository": "allenai/qasc", "revision": "abc", "file": file}


def test_a_file_without_a_good_row_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "mine.csv", [{"question": "Up?", "choices": ["a", "a"], "answer": 0}])
    message = refusal(str(path), skip_bad_rows=True)
    assert "(1 bad row in all, rows counted from 1 without the header)" in message
    assert message.endswith("; fix the file, or give another: none is good")
    assert "skip" not in message
    bad = {"question": "Up?", "choices": ["a", "a"], "answer": 0}
    lines = refusal(str(write(tmp_path / "mine.jsonl", [bad])))
    assert "(1 bad row in all);" in lines  # a line has its own number
    some = refusal(str(write(tmp_path / "some.jsonl", [bad, *OWN, bad])))
    remedy = "(2 bad rows in all); fix the file, or leave them out with --skip-bad-rows"
    assert some.endswith(remedy)


def test_a_missing_file_is_not_reported_as_an_unknown_task(tmp_path: Path) -> None:
    assert "no such task" not in refusal(str(tmp_path / "missing.jsonl"))
    assert "no such task" in refusal("missing")


class TestManyChoices:
    def test_questions_of_4_to_24_choices_are_about_the_same_facts(self) -> None:
        answers = {fact.question: fact.answer for fact in load_facts()}
        sizes = (4, 8, 16, 24)
        versions = [evaluation_questions(40, K, 0, "miniature-many") for K in sizes]
        for nested in zip(*versions, strict=True):
            for less, more in pairwise(nested):
                assert (less.id, less.text, less.cluster) == (more.id, more.text, more.cluster)
                assert [c for c in more.choices if c in less.choices] == list(less.choices)
            for K, question in zip(sizes, nested, strict=True):
                assert len(set(question.choices)) == K
                assert question.choices[question.answer or 0] == answers[question.text]
        assert all(held_out(question.text, question.choices) for question in versions[1])
        places = {
            question.answer for question in evaluation_questions(300, 24, 1, "miniature-many")
        }
        assert places == set(range(24))

    def test_larger_questions_use_the_facts_with_enough_choices(self) -> None:
        kinds = {fact.question: fact.kind for fact in load_facts()}
        fifty, hundred = (evaluation_questions(30, K, 0, "miniature-many") for K in (50, 100))
        assert {kinds[question.text] for question in fifty} == {"capital", "element_symbol"}
        assert {kinds[question.text] for question in hundred} == {"capital"}
        assert {len(set(question.choices)) for question in hundred} == {100}
        same = {question.id: question for question in fifty}
        both = [(same[one.id], one) for one in hundred if one.id in same]
        assert both
        assert all({*less.choices} < {*more.choices} for less, more in both)

    def test_too_many_choices_are_refused(self) -> None:
        message = "miniature-many has questions of 2 to 100 choices, not 101"
        assert message in refusal("miniature-many", cut_to=[101])
        assert "not 16; miniature-many has up to 100" in refusal("miniature", cut_to=[16])


class TestNoneOfTheAbove:
    NULL = "None of the above"

    def check(self, tasks: list[Task], K: int) -> None:
        """As it is, and with the text in place of a wrong choice, and of the right one."""
        plain, wrong, right = tasks
        assert (wrong.name, right.name) == (f"{plain.name}-none-wrong", f"{plain.name}-none-right")
        for whole, without, instead in zip(*(task.questions for task in tasks), strict=True):
            assert len({whole.id, without.id, instead.id}) == 1
            answer = whole.choices[whole.answer or 0]
            assert self.NULL not in whole.choices
            for one in (without, instead):
                assert len(one.choices) == K
                assert one.choices[-1] == self.NULL
                assert {*one.choices[:-1]} < {*whole.choices}
            assert without.choices[without.answer or 0] == answer
            assert answer not in instead.choices
            assert instead.answer == K - 1

    def test_none_of_the_above_in_the_miniature(self) -> None:
        tasks = load_tasks(
            ["miniature"], Selection(cut_to=[8], questions=30, none_of_the_above=True)
        )
        self.check(tasks, 8)
        assert all(held_out(q.text, q.choices[:-1]) for q in tasks[1].questions)
        few = load_tasks(
            ["miniature"], Selection(cut_to=[8], questions=30, limit=4, none_of_the_above=True)
        )
        assert [len(task.questions) for task in few] == [4, 4, 4]
        assert few[2].questions == tasks[2].questions[:4]

    def test_none_of_the_above_in_a_file(self, tmp_path: Path) -> None:
        rows = [
            {"question": f"Which {i}?", "choices": [f"{i} {x}" for x in "abcde"], "answer": i % 5}
            for i in range(10)
        ]
        path = write(tmp_path / "own.jsonl", rows)
        tasks = load_tasks([str(path)], Selection(cut_to=[4, 5], none_of_the_above=True))
        self.check(tasks[:3], 4)
        self.check(tasks[3:], 5)


def test_loading_tasks_does_not_import_torch() -> None:
    code = "import sys, minise.data.tasks; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_columns_and_forms_of_answers_are_for_own_files_alone(tmp_path: Path) -> None:
    row = {"question": "Up?", "choices": ["yes", "no"], "answer": 1}
    mine = write(tmp_path / "mine.json", [row])
    qasc = write(tmp_path / "rows.json", [QASC])
    for option in ({"columns": {"id": "Nr."}}, {"answers": "text"}):
        assert refusal("miniature", f"qasc@{qasc}", **option) == (
            "--columns and --answers are for a file of your own questions; name one"
        )
    first, second = load_tasks([str(mine), f"qasc@{qasc}"], Selection(answers="index1"))
    assert first.questions[0].answer == 0
    assert second.questions == load_tasks([f"qasc@{qasc}"])[0].questions
    assert "has the columns of QASC" in refusal(str(qasc), answers="text")
