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
from minise.lab.data.asked import ClusteredQuestion
from minise.question import Question

LARGEST = 8  # choices of an evaluation question; fewer are a subset of these
MANY = "miniature-many"
LARGEST_OF = {MANY: 100}  # the world that has more
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
    facts: list[Fact] = []
    for kind, by_subject in _world().items():
        if kind != "country":
            facts.extend(by_subject.values())
    return facts


def load_hops() -> list[Fact]:
    """The questions of `HOPS`, as facts. One in four is left out: tiny-reasoner was trained on it
    without its steps."""
    world = _world()
    hops = []
    for first_kind, second_kind, question in HOPS:
        for subject, first in world[first_kind].items():
            text = question.format(subject)
            second = world[second_kind].get(first.answer)
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
    world: dict[str, dict[str, Fact]] = {}
    for name, kind in kinds.items():
        world[name] = {}
        answers = list(dict.fromkeys(kind["facts"].values()))
        for rank, (subject, answer) in enumerate(kind["facts"].items(), 1):
            place = answers.index(answer)
            others = []
            plausibility = []
            for i, other in enumerate(answers):
                if i != place:
                    others.append(other)
                    plausibility.append(1 / abs(i - place))
            world[name][subject] = Fact(
                kind=name,
                question=kind["question"].format(subject=subject),
                answer=answer,
                statement=kind["statement"].format(subject=subject, answer=answer),
                frequency=rank**-1.25,
                others=tuple(others),
                plausibility=tuple(plausibility),
            )
    return world


def draw_wrong(fact: Fact, count: int, draw: random.Random) -> list[str]:
    """`count` different wrong choices; each next one is drawn in proportion to its plausibility."""
    # Efraimidis and Spirakis 2006. Python promises to keep the sequence of random() alone.
    keys = [draw.random() ** (1 / weight) for weight in fact.plausibility]
    drawn = sorted(zip(keys, fact.others, strict=True), reverse=True)
    return [wrong for _, wrong in drawn[:count]]


def held_out(question: str, choices: Sequence[str]) -> bool:
    """Whether the question with this set of choices is held out for evaluation. One in eight is."""
    content = json.dumps([question, sorted(choices)])
    return hashlib.sha256(content.encode()).digest()[0] < 32


def load_many() -> list[Fact]:
    """The facts of the kinds with 24 answers or more."""
    return [fact for fact in load_facts() if len(fact.others) > 22]


# The tasks of the miniature, by name.
WORLDS: dict[str, Callable[[], list[Fact]]] = {
    "miniature": load_facts,
    MANY: load_many,
    "miniature-hops": load_hops,
}


def evaluation_questions(
    n: int, num_choices: int, seed: int, world: str = "miniature"
) -> list[Question]:
    """`n` held-out questions. Facts are drawn uniformly; each is a cluster. The i-th is about the
    same fact for any `num_choices`, and its choices are among those of a larger one, in order; in
    MANY, facts with too few answers are left out. Raises InputError for another number."""
    largest = LARGEST_OF.get(world, LARGEST)
    if not 2 <= num_choices <= largest:
        raise InputError(f"{world} has questions of 2 to {largest} choices, not {num_choices}")
    questions: list[Question] = []
    number = 0
    while len(questions) < n:
        drawn = _drawn(world, seed, number)
        if len(drawn.chain) >= num_choices:
            kept = drawn.chain[:num_choices]
            choices = [choice for choice in drawn.shuffled if choice in kept]
            question = ClusteredQuestion(
                drawn.fact.question,
                choices,
                id=f"{world}-{seed}-{number}",
                answer=choices.index(drawn.fact.answer),
                cluster=f"{world}-fact-{drawn.place}",
            )
            questions.append(question)
        number += 1
    return questions


@cache
def _facts(world: str) -> list[Fact]:
    return WORLDS[world]()


@dataclass(frozen=True)
class Drawn:
    """A fact with choices. place: of the fact in its world. chain: the choices as drawn, the answer
    first. shuffled: as they are shown."""

    place: int
    fact: Fact
    chain: list[str]
    shuffled: list[str]


@cache
def _drawn(world: str, seed: int, number: int) -> Drawn:
    facts = _facts(world)
    draw = random.Random(f"evaluation/{seed}/{number}")
    place = int(draw.random() * len(facts))
    fact = facts[place]
    chain = _held_out_chain(fact, draw)[: LARGEST_OF.get(world, LARGEST)]
    keyed = [(draw.random(), choice) for choice in chain]
    keyed.sort(reverse=True)
    return Drawn(place, fact, chain, [choice for _, choice in keyed])


def _held_out_chain(fact: Fact, draw: random.Random) -> list[str]:
    """The answer and wrong choices, such that the first 2, 3, ..., 8 are each a held-out set; empty
    if at some step no choice gives one. (The training shows no larger set.)"""
    chain = [fact.answer]
    rest = draw_wrong(fact, len(fact.others), draw)
    while len(chain) < LARGEST:
        for choice in rest:
            if held_out(fact.question, [*chain, choice]):
                break
        else:
            return []
        chain.append(choice)
        rest.remove(choice)
    return chain + rest
