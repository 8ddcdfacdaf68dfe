"""The shipped checkpoints and the world they were trained on."""

import hashlib
import random
import re
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest

from minise import load, self_ensemble, standard
from minise.lab.data import miniature
from minise.lab.data.miniature import (
    MANY,
    draw_wrong,
    evaluation_questions,
    held_out,
    load_facts,
    load_hops,
)
from minise.lab.data.tasks import Selection, load_tasks
from minise.lab.writing.chat import chat_template, stop_tokens
from minise.lab.writing.generation import generate

ROOT = Path(__file__).parents[3]
SHIPPED = ("tiny-llama", "tiny-mistral", "tiny-qwen2")
ALL = (*SHIPPED, "tiny-reasoner")
HOPS = "miniature-hops"


def test_every_fact_has_one_right_answer_and_enough_wrong_ones() -> None:
    facts = load_facts()
    assert len(facts) == len({fact.question for fact in facts}) == 556
    for fact in facts:
        assert fact.answer not in fact.others
        assert len(set(fact.others)) == len(fact.others) == len(fact.plausibility) >= 13
        assert fact.statement.endswith(f"{fact.answer}.")
    capitals = [fact for fact in facts if fact.kind == "capital"]
    assert [fact.frequency for fact in capitals[:2]] == [1.0, pytest.approx(2**-1.25)]


def test_wrong_choices_near_the_answer_in_fame_are_drawn_more_often() -> None:
    fact = next(fact for fact in load_facts() if fact.answer == "Madrid")
    near, far = fact.others[:10], fact.others[-50:]
    draw = random.Random("wrong")
    drawn = Counter(w for _ in range(2000) for w in draw_wrong(fact, 3, draw))
    assert min(drawn[w] for w in near) > 4 * max(drawn[w] for w in far)
    assert sum(drawn.values()) == 6000
    assert len(set(draw_wrong(fact, 7, draw))) == 7


def test_each_question_of_two_hops_has_the_answer_of_its_second_fact() -> None:
    hops = {hop.question: hop for hop in load_hops()}
    facts = {fact.question: fact for fact in load_facts()}
    assert len(hops) > 90
    country = facts["What is the currency of Japan?"]
    hop = hops["What is the currency of the country whose capital is Tokyo?"]
    assert hop.answer == country.answer not in hop.others
    world = miniature._world()
    for first, second, text in miniature.HOPS:
        for subject, fact in world[first].items():
            if hop := hops.pop(text.format(subject), None):
                assert hop.answer == world[second][fact.answer].answer not in hop.others
    assert not hops


@pytest.mark.parametrize("world", ["miniature", MANY, HOPS])
def test_questions_are_the_same_everywhere_and_their_answers_are_right(world: str) -> None:
    answers = {fact.question: fact.answer for fact in (*load_facts(), *load_hops())}
    questions = evaluation_questions(100, 8, 0, world)
    assert questions == evaluation_questions(200, 8, 0, world)[:100]
    assert questions != evaluation_questions(100, 8, 1, world)
    assert len({question.id for question in questions}) == 100
    for question in questions:
        assert len(set(question.choices)) == 8
        assert question.choices[question.answer or 0] == answers[question.text]
    by_cluster = {question.cluster: question.text for question in questions}
    assert len(by_cluster) == len(set(by_cluster.values())) < 100  # some facts are asked twice
    places = Counter(question.answer for question in evaluation_questions(800, 8, 0, world))
    assert min(places.values()) > 60


def test_the_first_question_never_changes() -> None:
    [question] = evaluation_questions(1, 8, seed=0)
    assert question.id == "miniature-0-0"
    assert question.choices == (
        *("flew", "stole", "caught", "slept"),
        *("chose", "froze", "fell", "hid"),
    )


@pytest.mark.parametrize(
    ("world", "sizes"),
    [("miniature", range(2, 9)), (HOPS, (2, 4, 8)), (MANY, (4, 8, 16, 24))],
)
def test_fewer_choices_are_a_subset_in_the_same_order_and_held_out(
    world: str, sizes: tuple[int, ...]
) -> None:
    versions = load_tasks([world], Selection(limit=40, question_seed=2, cut_to=sizes))
    for nested in zip(*(task.questions for task in versions), strict=True):
        assert [len(set(question.choices)) for question in nested] == list(sizes)
        for less, more in pairwise(nested):
            assert (less.id, less.text, less.cluster) == (more.id, more.text, more.cluster)
            assert [c for c in more.choices if c in less.choices] == list(less.choices)
            assert less.choices[less.answer or 0] == more.choices[more.answer or 0]
        for question in nested:  # in any order; the training shows 8 choices at most
            assert len(question.choices) > 8 or held_out(question.text, question.choices[::-1])


def test_a_hundred_choices_are_of_the_facts_that_have_enough() -> None:
    kinds = {fact.question: fact.kind for fact in load_facts()}
    questions = evaluation_questions(30, 100, 0, MANY)
    assert {kinds[question.text] for question in questions} == {"capital"}
    assert {len(set(question.choices)) for question in questions} == {100}


@pytest.mark.slow
@pytest.mark.parametrize("name", SHIPPED)
def test_a_short_evaluation_agrees_with_the_card(name: str) -> None:
    """Within the card's interval, plus three standard errors of so few questions."""
    lm, card = load(f"weights/{name}"), (ROOT / "weights" / name / "README.md").read_text()
    asked = (("standard inference", standard, 60), ("Self-Ensemble", self_ensemble, 20))
    for method, ask, n in asked:
        questions = evaluation_questions(n, 8, seed=0)
        right = sum(ask(lm, question).prediction == question.answer for question in questions)
        (row,) = re.findall(rf"^\| {method} \|.*\|$", card, re.MULTILINE)
        [(low, high)] = re.findall(r"\[([\d.]+), ([\d.]+)\]", row)
        spread = 100 * 3 * (0.25 / n) ** 0.5
        assert float(low) - spread <= 100 * right / n <= float(high) + spread


@pytest.mark.parametrize("name", ALL)
def test_the_card_names_the_files_by_their_hashes(name: str) -> None:
    folder = ROOT / "weights" / name
    card = (folder / "README.md").read_text()
    for file in sorted(folder.iterdir()):
        if file.name != "README.md":
            assert f"`{file.name}` {hashlib.sha256(file.read_bytes()).hexdigest()}" in card
    lm = load(f"weights/{name}")
    assert stop_tokens(lm) == [1]
    assert (chat_template(lm) is None) == (name != "tiny-reasoner")


def test_the_reasoner_writes_its_steps_and_stops() -> None:
    lm = load("weights/tiny-reasoner")
    questions = evaluation_questions(8, 4, 0, HOPS)
    listed = [
        "".join(f"\n({'ABCD'[i]}) {c}" for i, c in enumerate(question.choices))
        for question in questions
    ]
    prompts = [
        f"User: {q.text}{choices}\nLet's think step by step.\nModel:\n"
        for q, choices in zip(questions, listed, strict=True)
    ]
    form = r"[A-Z][^.]+\. [A-Z][^.]+\. So the answer is \([A-H]\) [^.]+\."
    texts = generate(lm, prompts, 96)
    assert all(text.finished for text in texts)
    assert sum(re.fullmatch(form, text.text.strip()) is not None for text in texts) >= 6
