"""Names and files become tasks. Every draw is seeded."""

import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from minise.lab.data.miniature import evaluation_questions
from minise.lab.data.tasks import Selection, load_tasks
from tests.lab.support.rows import MMLU, OWN, QASC, QUESTIONS, TRUTHFUL_HUB, load, refusal, write


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
    for task in tasks:
        for version, question in zip(task.questions, whole, strict=True):
            assert (version.id, version.text) == (question.id, question.text)
            assert version.choices[version.answer or 0] == question.choices[question.answer or 0]
            assert sorted(version.choices) == list(version.choices)  # in their order
    for smaller, larger in pairwise(tasks):
        for few, many in zip(smaller.questions, larger.questions, strict=True):
            assert set(few.choices) < set(many.choices)
    # Which choices are kept is random: before and after the answer, and not always the same.
    of_v = [q for q in tasks[0].questions if q.choices[q.answer or 0] == "v"]
    assert len({choice for q in of_v for choice in q.choices}) > 4
    assert {q.answer for q in tasks[0].questions} == {0, 1}


def test_the_choices_of_a_smaller_question_depend_only_on_seed_and_id(tmp_path: Path) -> None:
    rows = eights(40)
    forth = write(tmp_path / "forth.json", rows)
    back = write(tmp_path / "back.json", rows[:5:-1])
    by_id = {q.id: q for q in load(forth, cut_to=[4]).questions}
    for question in load(back, cut_to=[4]).questions:
        assert question == by_id[question.id]
    alone = load_tasks([str(forth)], Selection(cut_to=[2, 4], limit=3))[1].questions
    assert alone == list(by_id.values())[:3]
    other = load(forth, cut_to=[4], question_seed=1).questions
    assert sum(q != by_id[q.id] for q in other) > 30
    assert ["".join(q.choices) for q in alone] == ["stxy", "stvw", "tuvz"]  # everywhere


def test_questions_with_too_few_choices_for_the_largest_number_are_left_out(
    tmp_path: Path,
) -> None:
    path = write(tmp_path / "mine.json", [*OWN, *eights(5)])
    tasks = load_tasks([str(path)], Selection(cut_to=[2, 8], limit=2))
    for task in tasks:
        assert [question.id for question in task.questions] == ["eight-0", "eight-1"]
    assert load(path, cut_to=[3]).questions[0] == QUESTIONS[0]
    assert load(path).choices is None
    assert load(path, limit=1).choices == 3


@pytest.mark.parametrize("cut_to", [[], [4]])
def test_skipped_questions_are_left_out_before_the_first_ones_are_taken(
    tmp_path: Path, cut_to: list[int]
) -> None:
    path = write(tmp_path / "mine.json", [*OWN, *eights(9)])
    everything = load(path, cut_to=cut_to).questions
    for skip, limit in ((3, 2), (3, None), (0, 2)):
        part = everything[skip:][:limit]
        one = load(path, cut_to=cut_to, skip={"own": skip}, limit=limit)
        assert one.questions == part
    made = load_tasks(["miniature"], Selection(cut_to=cut_to, limit=5))[0].questions
    [task] = load_tasks(["miniature"], Selection(cut_to=cut_to, skip={"miniature": 3}, limit=2))
    assert task.questions == made[3:]


def test_group_size_and_trials_are_the_papers(tmp_path: Path) -> None:
    rows = {"qasc": QASC, "truthfulqa": TRUTHFUL_HUB, "mmlu_pro_biology": MMLU}
    for name, sizes in {"qasc": (4, 20), "truthfulqa": (3, 6), "mmlu_pro_biology": (5, 40)}.items():
        path = write(tmp_path / f"{name}.json", [rows[name]])
        for task in [load(path, name), load(path, name, cut_to=[2])]:
            assert (task.dataset, task.group_size, task.trials) == (name, *sizes)
    [small, large] = load_tasks(["miniature"], Selection(limit=3, cut_to=[2, 8]))
    assert (small.group_size, large.trials) == (4, 20)
    # A user's file is no published data set, even if it has its name.
    mine = load(write(tmp_path / "truthfulqa.json", OWN))
    assert (mine.name, mine.dataset, mine.group_size) == ("truthfulqa", "own", 4)


def test_the_miniature_is_drawn_from_the_seed() -> None:
    [task] = load_tasks(["miniature"], Selection(question_seed=2, limit=20))
    assert task.questions == evaluation_questions(30, 8, seed=2)[:20]
    tasks = load_tasks(["miniature"], Selection(cut_to=(2, 5), limit=20))
    assert [t.name for t in tasks] == ["miniature-k2", "miniature-k5"]
    for K, task in zip((2, 5), tasks, strict=True):
        assert (task.dataset, task.choices) == ("miniature", K)
        assert task.questions == evaluation_questions(30, K, seed=0)[:20]
    assert len(load_tasks(["miniature"])[0].questions) == 1000


def test_several_tasks_keep_their_order(tmp_path: Path) -> None:
    mine, qasc = write(tmp_path / "mine@home.json", OWN), write(tmp_path / "q.json", [QASC])
    tasks = load_tasks(["miniature", str(mine), f"qasc@{qasc}"], Selection(limit=3))
    assert [task.name for task in tasks] == ["miniature", "mine@home", "qasc"]
    assert [len(task.questions) for task in tasks] == [3, 2, 1]


@pytest.mark.parametrize(
    ("names", "selection", "named"),
    [
        (["quasc"], {}, "quasc"),
        (["miniature@v1"], {}, "miniature@v1"),
        (["qasc@missing.parquet"], {}, "missing.parquet"),
        (["mine.json"], {"limit": 0}, "limit 0"),
        (["mine.json"], {"skip": {"own": 2}}, "after the first 2"),
        (["mine.json"], {"cut_to": [1]}, "1 choice"),
        (["mine.json"], {"cut_to": [10**9]}, "mine-k1000000000"),
        (["mine.json"], {"cut_to": [2, 2]}, "mine-k2"),
        (["mine.json", "mine.csv"], {}, "mine"),
        (["miniature"], {"cut_to": [9]}, "2 to 8"),
        (["miniature-many"], {"cut_to": [101]}, "2 to 100"),
    ],
)
def test_what_leaves_no_question_is_refused(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    names: list[str],
    selection: dict[str, Any],
    named: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    for kind in ("json", "csv"):
        write(tmp_path / f"mine.{kind}", OWN)
    assert named in refusal(*names, **selection)


def test_loading_tasks_does_not_import_torch() -> None:
    code = "import sys, minise.lab.data.tasks; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
