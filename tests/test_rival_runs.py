"""The rivals in a run: their tasks, what is left out and said, and what each is told to cost."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from minise.evaluation.experiments import EXPERIMENTS
from minise.evaluation.samples import read_samples
from minise.evaluation.tasks import Task, load_tasks
from minise.methods.registry import METHODS, make_variants
from minise.miniature import evaluation_questions, held_out, load_facts
from tests.commands import assert_one_line, run
from tests.rows import refusal, write

for module in ("scipy", "sklearn", "matplotlib", "filelock"):
    pytest.importorskip(module)
pytestmark = pytest.mark.usefixtures("undrawn")

NULL = "None of the above"


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

    def test_of_more_choices_are_the_facts_that_have_them(self) -> None:
        kinds = {fact.question: fact.kind for fact in load_facts()}
        fifty, hundred = (evaluation_questions(30, K, 0, "miniature-many") for K in (50, 100))
        assert {kinds[question.text] for question in fifty} == {"capital", "element_symbol"}
        assert {kinds[question.text] for question in hundred} == {"capital"}
        assert {len(set(question.choices)) for question in hundred} == {100}
        same = {question.id: question for question in fifty}
        both = [(same[one.id], one) for one in hundred if one.id in same]
        assert both
        assert all({*less.choices} < {*more.choices} for less, more in both)

    def test_too_many_are_refused(self) -> None:
        said = "miniature-many has questions of 2 to 100 choices, not 101"
        assert said in refusal("miniature-many", cut_to=[101])
        assert "not 16; miniature-many has up to 100" in refusal("miniature", cut_to=[16])


class TestNoneOfTheAbove:
    def check(self, tasks: list[Task], K: int) -> None:
        """As it is, with the text in the place of a wrong choice, and of the right one."""
        plain, wrong, right = tasks
        assert (wrong.name, right.name) == (f"{plain.name}-none-wrong", f"{plain.name}-none-right")
        for whole, without, instead in zip(*(task.questions for task in tasks), strict=True):
            assert len({whole.id, without.id, instead.id}) == 1
            answer = whole.choices[whole.answer or 0]
            assert NULL not in whole.choices
            for one in (without, instead):
                assert len(one.choices) == K
                assert one.choices[-1] == NULL
                assert {*one.choices[:-1]} < {*whole.choices}
            assert without.choices[without.answer or 0] == answer
            assert answer not in instead.choices
            assert instead.answer == K - 1

    def test_of_the_miniature(self) -> None:
        tasks = load_tasks(["miniature"], cut_to=[8], questions=30, none_of_the_above=True)
        self.check(tasks, 8)
        assert all(held_out(q.text, q.choices[:-1]) for q in tasks[1].questions)
        few = load_tasks(["miniature"], cut_to=[8], questions=30, limit=4, none_of_the_above=True)
        assert [len(task.questions) for task in few] == [4, 4, 4]
        assert few[2].questions == tasks[2].questions[:4]

    def test_of_a_file(self, tmp_path: Path) -> None:
        rows = [
            {"question": f"Which {i}?", "choices": [f"{i} {x}" for x in "abcde"], "answer": i % 5}
            for i in range(10)
        ]
        path = write(tmp_path / "own.jsonl", rows)
        tasks = load_tasks([str(path)], cut_to=[4, 5], none_of_the_above=True)
        self.check(tasks[:3], 4)
        self.check(tasks[3:], 5)


def test_what_runs() -> None:
    """Self-Ensemble first, because many methods are compared with the first alone; every method
    that asks no model after those that it needs."""
    for name in ("rivals", "null-option"):
        variants = EXPERIMENTS[name].variants(Task("x", "miniature", [], {}))
        names = [variant.name for variant in variants]
        assert names == [variant.method for variant in variants]
        assert names[0] == "self-ensemble"
        assert names.index("pride") > max(names.index("standard"), names.index("cyclic"))
        assert variants[-1].settings == {"matched": True}
    new = [name for name, (where, _) in METHODS.items() if ".priors:" in where]
    new += [name for name, (where, _) in METHODS.items() if ".tournaments:" in where]
    assert {*new, "set-based", "permutations"} < {*names}
    made = [one.name for one in make_variants(["pride(share=0.2)"], {}, "tree")]
    assert made == ["standard", "cyclic", "pride(share=0.2)"]


@pytest.fixture
def evaluate(capsys: Any, llama_folder: Path, tmp_path: Path) -> Any:
    def run_it(K: int, *options: object) -> tuple[int, str, str]:
        rows = [
            {
                "id": f"q{i}",
                "question": f"Which {i}?",
                "choices": [f"choice {x}" for x in range(K)],
                "answer": i % K,
            }
            for i in range(12)
        ]
        data = write(tmp_path / "mine.jsonl", rows)
        fixed = ("--model", llama_folder, "--task", data, "--output-path", tmp_path / "run")
        return run(capsys, "eval", *fixed, "--group-size", 2, "--trials", 2, *options)

    return run_it


def test_what_cannot_label_so_many_choices_is_left_out_in_one_line(
    evaluate: Any, tmp_path: Path
) -> None:
    status, _, err = evaluate(30, "--experiment", "rivals", "--cut-to", 30, "--limit", 2)
    assert status == 0
    refused = "standard, cyclic, cyclic-matched, permutations, pride, contextual-calibration, "
    refused += "batch-calibration, domain-calibration, elimination"
    why = "(30 choices in one prompt, but only 26 labels (A-Z); use smaller groups)"
    assert err == f"minise: mine-k30: left out: {refused} {why}\n"
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    assert list(results["results"]["mine-k30"]) == [
        *("self-ensemble", "knockout", "set-based", "league")
    ]
    assert {d["b"] for d in results["differences"]["mine-k30"]} >= {"self-ensemble"}


def test_by_name_they_are_refused(evaluate: Any) -> None:
    done = evaluate(30, "--method", "elimination")
    assert_one_line(*done, ["mine: elimination: 30 choices in one prompt, but only 26 labels"])


def test_each_tells_what_it_costs(evaluate: Any, tmp_path: Path) -> None:
    named = "pride(share=0.25),batch-calibration,contextual-calibration,elimination,knockout"
    assert evaluate(4, "--method", named, "--keep-groups")[0] == 0
    asked = {
        path.stem.removeprefix("samples-mine-"): read_samples(path)
        for path in (tmp_path / "run").glob("samples-*.jsonl")
    }
    tokens = {name: [sample.tokens for sample in samples] for name, samples in asked.items()}
    assert tokens["batch-calibration"] == tokens["standard"]
    rotated = [
        own == cyclic
        for own, cyclic in zip(tokens["pride(share=0.25)"], tokens["cyclic"], strict=True)
    ]
    assert sum(rotated) == 3
    for own, alone, is_rotated in zip(
        tokens["pride(share=0.25)"], tokens["standard"], rotated, strict=True
    ):
        assert is_rotated or own == alone
    alone = tokens["standard"]
    assert all(own > one for own, one in zip(tokens["contextual-calibration"], alone, strict=True))
    again = [own > one for own, one in zip(tokens["elimination"], alone, strict=True)]
    assert any(again)
    assert again == [len(sample.groups or ()) == 2 for sample in asked["elimination"]]
    last = [sample.groups[-1]["tokens"] for sample in asked["elimination"] if sample.groups]
    assert last == tokens["elimination"]


def test_what_is_wrong_with_a_setting_is_one_line(evaluate: Any) -> None:
    for named, said in {
        "knockout(match=1)": "match=1 is below 2",
        "elimination(rounds=0)": "rounds=0 is below 1",
        "domain-calibration(texts=0)": "texts=0 is below 1",
        "permutations(count=0)": "number of trials 0 is below 1",
        "league(matched=7)": "matched=7 is wrong; give true or false",
        "pride(share=much)": 'share="much" is wrong; give a number',
    }.items():
        assert_one_line(*evaluate(4, "--method", named), [said])
