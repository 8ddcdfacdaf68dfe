"""The miniature: the small world of facts that the shipped checkpoints were trained on.

Three things make it like a large world. Facts differ in fame: a text tells the r-th best known fact
of its kind in proportion to r ** -1.25, so that what a model knows is partial. Wrong choices are
answers to other facts of the same kind, the more often the nearer they stand to the right one in
fame. And which sets of choices a model may see in training, and which are kept for evaluation, is
decided by a hash, so that no evaluation question was ever shown, in any order of its choices.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from minise.errors import InputError
from minise.prompt import Question

LARGEST = 8  # choices of an evaluation question; the smaller ones are subsets of it
_FAME = 1.25


@dataclass(frozen=True)
class Fact:
    """A fact as question, answer and statement. `frequency`: how often texts tell it, relative to
    the best known of its kind. `others`: the kind's wrong answers; `plausibility`: the weight of
    each as a wrong choice, 1 / (distance in fame from the right answer)."""

    kind: str
    question: str
    answer: str
    statement: str
    frequency: float
    others: tuple[str, ...]
    plausibility: tuple[float, ...]


def load_facts() -> list[Fact]:
    """All facts, in the order of facts.json: by kind, best known first."""
    world = json.loads(Path(__file__).with_name("facts.json").read_text(encoding="utf-8"))
    facts = []
    for kind in world["kinds"]:
        answers = list(dict.fromkeys(kind["facts"].values()))
        for rank, (subject, answer) in enumerate(kind["facts"].items(), 1):
            place = answers.index(answer)
            facts.append(
                Fact(
                    kind["name"],
                    kind["question"].format(subject=subject),
                    answer,
                    kind["statement"].format(subject=subject, answer=answer),
                    rank**-_FAME,
                    tuple(other for other in answers if other != answer),
                    tuple(1 / abs(i - place) for i in range(len(answers)) if i != place),
                )
            )
    return facts


def draw_wrong(fact: Fact, count: int, draw: random.Random) -> list[str]:
    """`count` different wrong choices, each next one in proportion to its plausibility."""
    return _weighted_order(fact.others, fact.plausibility, draw)[:count]


def held_out(question: str, choices: Sequence[str]) -> bool:
    """Whether this question with this set of choices, in any order, is kept for evaluation: one
    set in eight."""
    content = json.dumps([question, sorted(choices)])
    return hashlib.sha256(content.encode()).digest()[0] < 32


def evaluation_questions(n: int, num_choices: int, seed: int) -> list[Question]:
    """`n` held-out questions of `num_choices` choices, the same for the same seed everywhere.

    Facts are drawn evenly, whatever their fame. The i-th question of fewer choices keeps the fact
    and a subset of the choices, in their order, of the i-th of more; each such subset is held out.
    Raises InputError for fewer than 2 or more than 8 choices.
    """
    if not 2 <= num_choices <= LARGEST:
        raise InputError(
            f"the miniature has questions of 2 to {LARGEST} choices, not {num_choices}"
        )
    facts, number = load_facts(), 0
    questions: list[Question] = []
    while len(questions) < n:
        draw = random.Random(f"evaluation/{seed}/{number}")
        number += 1
        fact = facts[int(draw.random() * len(facts))]
        chosen = _held_out_chain(fact, draw)
        if chosen is None:
            continue
        kept = set(chosen[:num_choices])
        choices = [c for c in _weighted_order(chosen, [1.0] * LARGEST, draw) if c in kept]
        name = f"miniature-{seed}-{number - 1}"
        answer = choices.index(fact.answer)
        questions.append(Question(fact.question, choices, id=name, answer=answer))
    return questions


def _held_out_chain(fact: Fact, draw: random.Random) -> list[str] | None:
    """The answer and seven wrong choices, every beginning of which is a held-out set; None if the
    draws lead to a set that none extends."""
    chosen = [fact.answer]
    order = _weighted_order(fact.others, fact.plausibility, draw)
    while len(chosen) < LARGEST:
        # The likeliest to come next is the first that still can.
        left = (c for c in order if c not in chosen and held_out(fact.question, [*chosen, c]))
        if (following := next(left, None)) is None:
            return None
        chosen.append(following)
    return chosen


def _weighted_order(
    items: Sequence[str], weights: Sequence[float], draw: random.Random
) -> list[str]:
    """A random order in which each next item is drawn in proportion to its weight."""
    # By sorting draws (Efraimidis and Spirakis): random() is the one method whose sequence Python
    # promises to keep.
    keys = [draw.random() ** (1 / weight) for weight in weights]
    return [item for _, item in sorted(zip(keys, items, strict=True), reverse=True)]
