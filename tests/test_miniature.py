"""The shipped checkpoint and the world it was trained on."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from minise import LanguageModel, load, self_ensemble, standard
from minise.cli import QUESTION
from minise.evaluation.miniature import evaluation_questions, held_out, load_facts
from tools.train_miniature import multiple_choice

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def tiny_llama() -> LanguageModel:
    return load("weights/tiny-llama")


def test_every_fact_has_one_right_answer_and_enough_wrong_ones() -> None:
    facts = load_facts()
    assert len(facts) > 500
    assert len({fact.question for fact in facts}) == len(facts)
    for fact in facts:
        assert fact.answer not in fact.others
        assert len(set(fact.others)) == len(fact.others) >= 13
        assert fact.statement.endswith(f"{fact.answer}.")


def test_evaluation_questions_are_the_same_everywhere_and_right() -> None:
    answers = {fact.question: fact.answer for fact in load_facts()}
    questions = evaluation_questions(100, 8, seed=0)
    assert questions == evaluation_questions(200, 8, seed=0)[:100]
    assert questions != evaluation_questions(100, 8, seed=1)
    assert len({question.id for question in questions}) == 100
    for question in questions:
        assert len(set(question.choices)) == 8
        assert question.answer is not None
        assert question.choices[question.answer] == answers[question.text]
    places = Counter(question.answer for question in evaluation_questions(800, 8, seed=0))
    assert min(places.values()) > 60
    assert questions[0].choices == FIRST


FIRST = ("Zagreb", "Stockholm", "Vienna", "Tallinn", "Rabat", "Paris", "Abuja", "Kingston")


def test_training_never_shows_an_evaluation_question_in_any_order() -> None:
    facts, draw = load_facts(), random.Random("test")
    for _ in range(3000):
        prompt, label = multiple_choice(facts, draw)
        question, *lines = prompt.split("\n")[:-1]
        choices = [line.split(") ", 1)[1] for line in lines]
        shown = [choice for choice in choices if choice != "None of the above"]
        assert not held_out(question, shown)
        assert label in [f" {line[1]}" for line in lines]
    for k in (2, 4, 8):
        for question in evaluation_questions(50, k, seed=0):
            assert held_out(question.text, question.choices)
            assert held_out(question.text, question.choices[::-1])


def test_the_shipped_checkpoint_answers_the_built_in_question(tiny_llama: LanguageModel) -> None:
    answer = self_ensemble(tiny_llama, QUESTION)
    assert QUESTION.choices[answer.prediction] == "Lima"
    assert float(answer.probabilities[answer.prediction]) > 0.5


def test_the_shipped_checkpoint_knows_its_world(tiny_llama: LanguageModel) -> None:
    """Far from the card's numbers only if something is broken; the card is measured on more."""
    questions = evaluation_questions(60, 4, seed=0)
    right = sum(standard(tiny_llama, q).prediction == q.answer for q in questions)
    together = sum(
        self_ensemble(tiny_llama, q, group_size=2, trials=6).prediction == q.answer
        for q in questions
    )
    assert right >= 48
    assert together >= 48


def test_a_group_without_the_answer_says_none_of_the_above(tiny_llama: LanguageModel) -> None:
    answer = self_ensemble(tiny_llama, QUESTION)
    lima = QUESTION.choices.index("Lima")
    without = [group.null for group in answer.groups if lima not in group.choices]
    within = [group.null for group in answer.groups if lima in group.choices]
    assert sum(without) / len(without) > 0.5 > sum(within) / len(within)


def test_the_training_program_writes_a_checkpoint_that_loads(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "tools/train_miniature.py", str(tmp_path), "--steps", "2"],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    lm = load(tmp_path)
    assert float(standard(lm, QUESTION).probabilities.sum()) == pytest.approx(1)
    card = json.loads((tmp_path / "config.json").read_text())
    assert card == json.loads((ROOT / "weights/tiny-llama/config.json").read_text())
