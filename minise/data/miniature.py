"""The miniature: a small world of facts, on which the shipped checkpoints were trained.

It resembles a large world in two ways. Facts differ in fame: the training texts tell the r-th best
known fact of its kind in proportion to r ** -1.25, so a model knows some facts better than others.
Wrong choices are answers to other facts of the same kind, and those near the right answer in fame
come more often. A hash decides which sets of choices are held out for evaluation, so training never
shows an evaluation question, in any order of its choices.

Two facts that share an entity also make a question of two hops: "What is the currency of the
country whose capital is Lima?" (`HOPS`).
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from minise.errors import InputError
from minise.files import read_bytes
from minise.question import Question

LARGEST = 8  # choices of an evaluation question; fewer are a subset of these
MANY = 100  # of one of "miniature-many"
_FAME = 1.25
FACTS = Path(__file__).with_name("facts.json")
# The two kinds of fact that a question joins, and its text. The answer of the first fact is the
# subject of the second.
HOPS = (
    ("country", "currency", "What is the currency of the country whose capital is {}?"),
    ("city_country", "capital", "What is the capital of the country that has the city {}?"),
    ("city_country", "currency", "What is the currency of the country that has the city {}?"),
    ("capital", "river", "Which river flows through the capital of {}?"),
)
_COUNTRY = {  # the kind "capital" the other way round
    "name": "country",
    "question": "Of which country is {subject} the capital?",
    "statement": "The country whose capital is {subject} is {answer}.",
}


@dataclass(frozen=True)
class Fact:
    """A fact as question, answer and statement."""

    kind: str
    question: str
    answer: str
    statement: str
    frequency: float  # how often texts tell it; 1 for the best known fact of the kind
    others: tuple[str, ...]  # the wrong answers: all other answers of the kind
    plausibility: tuple[float, ...]  # of each as a wrong choice: 1 / (distance in fame)


def load_facts() -> list[Fact]:
    """All facts, in the order of facts.json: by kind, best known first."""
    return [fact for kind in _kinds() for fact in _facts_of(kind).values()]


def load_hops() -> tuple[list[Fact], list[Fact]]:
    """The facts that the questions of `HOPS` join, and these questions as facts, whose statement
    has both steps. All have the same frequency."""
    kinds = _kinds()
    capitals = next(kind["facts"] for kind in kinds if kind["name"] == "capital")
    kinds.append({**_COUNTRY, "facts": {city: country for country, city in capitals.items()}})
    world = {kind["name"]: _facts_of(kind) for kind in kinds}
    facts: dict[str, Fact] = {}
    hops = []
    for first_kind, second_kind, question in HOPS:
        for subject, first in world[first_kind].items():
            second = world[second_kind].get(first.answer)
            if second is None:
                continue
            for fact in (first, second):
                facts[fact.question] = replace(fact, frequency=1.0)
            both = f"{first.statement} {second.statement}"
            text = question.format(subject)
            hops.append(replace(second, question=text, statement=both, frequency=1.0))
    return list(facts.values()), hops


def shown(question: str) -> str:
    """How the training shows a question of two hops: "directly" (one in four: with steps and also
    without), "with steps" (two in four) or "never"."""
    quarter = hashlib.sha256(question.encode()).digest()[0] % 4
    return ("directly", "with steps", "with steps", "never")[quarter]


def _kinds() -> list[dict[str, Any]]:
    kinds: list[dict[str, Any]] = json.loads(read_bytes(FACTS))["kinds"]
    return kinds


def _facts_of(kind: dict[str, Any]) -> dict[str, Fact]:
    """The facts of a kind by their subjects."""
    answers = list(dict.fromkeys(kind["facts"].values()))
    facts = {}
    for rank, (subject, answer) in enumerate(kind["facts"].items(), 1):
        place = answers.index(answer)
        facts[subject] = Fact(
            kind["name"],
            kind["question"].format(subject=subject),
            answer,
            kind["statement"].format(subject=subject, answer=answer),
            rank**-_FAME,
            tuple(other for other in answers if other != answer),
            tuple(1 / abs(i - place) for i in range(len(answers)) if i != place),
        )
    return facts


def draw_wrong(fact: Fact, count: int, draw: random.Random) -> list[str]:
    """`count` different wrong choices; each next one is drawn in proportion to its plausibility."""
    return _weighted_order(fact.others, fact.plausibility, draw)[:count]


def held_out(question: str, choices: Sequence[str]) -> bool:
    """Whether the question with this set of choices, in any order, is held out for evaluation. One
    set in eight is."""
    content = json.dumps([question, sorted(choices)])
    return hashlib.sha256(content.encode()).digest()[0] < 32


# The tasks of the miniature, by name. Evaluation asks no question of two hops that the training
# shows without its steps. Questions of many choices are about facts of kinds with 24 answers or
# more, so that the questions of 4 to 24 choices are about the same facts.
WORLDS: dict[str, Callable[[], list[Fact]]] = {
    "miniature": load_facts,
    "miniature-many": lambda: [fact for fact in load_facts() if len(fact.others) > 22],
    "miniature-hops": lambda: [hop for hop in load_hops()[1] if shown(hop.question) != "directly"],
}


def evaluation_questions(
    n: int, num_choices: int, seed: int, world: str = "miniature"
) -> list[Question]:
    """`n` held-out questions of `num_choices` choices on a world of `WORLDS`, the same for the same
    seed on every machine.

    Facts are drawn uniformly, whatever their fame. For another `num_choices` the i-th question is
    about the same fact; the choices of the smaller one are among those of the larger, in the same
    order, and each of these sets is held out. (The training shows no more than 8 choices, so every
    larger set is held out.) In "miniature-many" a question whose fact has too few answers is left
    out. Raises InputError for fewer than 2 choices, and for more than 8 (in "miniature-many" 100).
    """
    most = MANY if world == "miniature-many" else LARGEST
    if not 2 <= num_choices <= most:
        more = "" if most == MANY else f"; miniature-many has up to {MANY}"
        raise InputError(f"{world} has questions of 2 to {most} choices, not {num_choices}{more}")
    facts, number = WORLDS[world](), 0
    questions: list[Question] = []
    while len(questions) < n:
        draw = random.Random(f"evaluation/{seed}/{number}")
        name, number = f"{world}-{seed}-{number}", number + 1
        index = int(draw.random() * len(facts))
        fact = facts[index]
        chain = _held_out_chain(fact, draw, most)
        if len(chain) < num_choices:
            continue
        chosen, shuffled = chain[:num_choices], _weighted_order(chain, [1.0] * len(chain), draw)
        choices = [choice for choice in shuffled if choice in chosen]
        answer, cluster = choices.index(fact.answer), f"{world}-fact-{index}"
        questions.append(Question(fact.question, choices, name, answer, cluster))
    return questions


def _held_out_chain(fact: Fact, draw: random.Random, most: int) -> list[str]:
    """The answer and seven wrong choices, such that the first 2, 3, ..., 8 are each a held-out set,
    then others up to `most` choices; empty if at some step no choice gives a held-out set."""
    chain = [fact.answer]
    order = _weighted_order(fact.others, fact.plausibility, draw)
    while len(chain) < LARGEST:
        for choice in order:
            if choice not in chain and held_out(fact.question, [*chain, choice]):
                chain.append(choice)
                break
        else:
            return []
    return [*chain, *(choice for choice in order if choice not in chain)][:most]


def _weighted_order(
    items: Sequence[str], weights: Sequence[float], draw: random.Random
) -> list[str]:
    """A random order in which each next item is drawn in proportion to its weight."""
    # By sorting draws (Efraimidis and Spirakis), because random() is the only method whose sequence
    # Python promises to keep.
    keys = [draw.random() ** (1 / weight) for weight in weights]
    return [item for _, item in sorted(zip(keys, items, strict=True), reverse=True)]
