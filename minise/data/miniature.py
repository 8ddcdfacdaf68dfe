"""The miniature: a small world of facts, on which the shipped checkpoints were trained.

As in a large world facts differ in fame, and wrong choices near the right answer in fame come more
often. The training never shows a set of choices that is held out for evaluation, in any order.
"""

import hashlib
import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from minise.errors import InputError
from minise.question import Question

LARGEST = 8  # choices of an evaluation question; fewer are a subset of these
MANY = "miniature-many"
MOST = {MANY: 100}  # choices of its questions
FACTS = Path(__file__).with_name("facts.json")
# Questions of two hops: the kinds of two facts, the first's answer being the second's subject.
HOPS = (
    ("country", "currency", "What is the currency of the country whose capital is {}?"),
    ("city_country", "capital", "What is the capital of the country that has the city {}?"),
    ("city_country", "currency", "What is the currency of the country that has the city {}?"),
    ("capital", "river", "Which river flows through the capital of {}?"),
)


@dataclass(frozen=True)
class Fact:
    kind: str
    question: str
    answer: str
    statement: str
    frequency: float  # how often texts tell it; 1 for the best known fact of the kind
    others: tuple[str, ...]  # the wrong answers: all other answers of the kind
    plausibility: tuple[float, ...]  # of each as a wrong choice: 1 / (distance in fame)


def load_facts() -> list[Fact]:
    """All facts, in the order of facts.json: by kind, best known first."""
    return [fact for kind, of in _world().items() if kind != "country" for fact in of.values()]


def load_hops() -> list[Fact]:
    """The questions of `HOPS`, as facts. One in four is left out: tiny-reasoner was trained on it
    without its steps."""
    world, hops = _world(), list[Fact]()
    for first_kind, second_kind, question in HOPS:
        for subject, first in world[first_kind].items():
            text, second = question.format(subject), world[second_kind].get(first.answer)
            if second and hashlib.sha256(text.encode()).digest()[0] % 4:
                hops.append(replace(second, question=text))
    return hops


def _world() -> dict[str, dict[str, Fact]]:
    """The facts by kind and subject."""
    kinds = {kind["name"]: kind for kind in json.loads(FACTS.read_bytes())["kinds"]}
    kinds["country"] = {  # the kind "capital" the other way round
        "question": "Of which country is {subject} the capital?",
        "statement": "The country whose capital is {subject} is {answer}.",
        "facts": {city: country for country, city in kinds["capital"]["facts"].items()},
    }
    world: dict[str, dict[str, Fact]] = {name: {} for name in kinds}
    for name, kind in kinds.items():
        answers = list(dict.fromkeys(kind["facts"].values()))
        for rank, (subject, answer) in enumerate(kind["facts"].items(), 1):
            place = answers.index(answer)
            world[name][subject] = Fact(
                name,
                kind["question"].format(subject=subject),
                answer,
                kind["statement"].format(subject=subject, answer=answer),
                rank**-1.25,
                tuple(other for other in answers if other != answer),
                tuple(1 / abs(i - place) for i in range(len(answers)) if i != place),
            )
    return world


def draw_wrong(fact: Fact, count: int, draw: random.Random) -> list[str]:
    """`count` different wrong choices; each next one is drawn in proportion to its plausibility."""
    # Efraimidis and Spirakis 2006. Python promises to keep the sequence of random() alone.
    keys = [draw.random() ** (1 / weight) for weight in fact.plausibility]
    return [wrong for _, wrong in sorted(zip(keys, fact.others, strict=True), reverse=True)][:count]


def held_out(question: str, choices: Sequence[str]) -> bool:
    """Whether the question with this set of choices is held out for evaluation. One in eight is."""
    content = json.dumps([question, sorted(choices)])
    return hashlib.sha256(content.encode()).digest()[0] < 32


# The tasks of the miniature, by name. MANY is about the kinds with 24 answers or more.
WORLDS: dict[str, Callable[[], list[Fact]]] = {
    "miniature": load_facts,
    MANY: lambda: [fact for fact in load_facts() if len(fact.others) > 22],
    "miniature-hops": load_hops,
}


def evaluation_questions(
    n: int, num_choices: int, seed: int, world: str = "miniature"
) -> list[Question]:
    """`n` held-out questions. Facts are drawn uniformly; each is a cluster. The i-th is about the
    same fact for any `num_choices`, and its choices are among those of a larger one, in order; in
    MANY, facts with too few answers are left out. Raises InputError for another number."""
    most = MOST.get(world, LARGEST)
    if not 2 <= num_choices <= most:
        raise InputError(f"{world} has questions of 2 to {most} choices, not {num_choices}")
    questions: list[Question] = []
    number = 0
    while len(questions) < n:
        index, fact, chain, shuffled = _drawn(world, seed, number)
        name, number = f"{world}-{seed}-{number}", number + 1
        if len(chain) >= num_choices:
            choices = [choice for choice in shuffled if choice in chain[:num_choices]]
            answer, cluster = choices.index(fact.answer), f"{world}-fact-{index}"
            questions.append(Question(fact.question, choices, name, answer, cluster))
    return questions


@cache
def _facts(world: str) -> list[Fact]:
    return WORLDS[world]()


@cache
def _drawn(world: str, seed: int, number: int) -> tuple[int, Fact, list[str], list[str]]:
    """A fact's place in a world, the fact, and its choices as drawn and as they are shown."""
    facts, draw = _facts(world), random.Random(f"evaluation/{seed}/{number}")
    index = int(draw.random() * len(facts))
    chain = _held_out_chain(facts[index], draw)[: MOST.get(world, LARGEST)]
    shuffled = sorted(((draw.random(), choice) for choice in chain), reverse=True)
    return index, facts[index], chain, [choice for _, choice in shuffled]


def _held_out_chain(fact: Fact, draw: random.Random) -> list[str]:
    """The answer and wrong choices, such that the first 2, 3, ..., 8 are each a held-out set; empty
    if at some step no choice gives one. (The training shows no larger set.)"""
    chain = [fact.answer]
    order = draw_wrong(fact, len(fact.others), draw)
    while len(chain) < LARGEST:
        fitting = (c for c in order if c not in chain and held_out(fact.question, [*chain, c]))
        if (choice := next(fitting, None)) is None:
            return []
        chain.append(choice)
    return [*chain, *(choice for choice in order if choice not in chain)]
