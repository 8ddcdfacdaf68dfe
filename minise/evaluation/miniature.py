"""The miniature: the small world of facts that the shipped checkpoints were trained on.

A question asks for one fact; its wrong choices are answers to other facts of the same kind. Which
sets of choices a model may see in training and which are kept for evaluation is decided by a hash,
so that no evaluation question was ever shown, in any order of its choices.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from minise.prompt import Question


@dataclass(frozen=True)
class Fact:
    """A fact as question, answer and statement; `others` are the kind's wrong answers."""

    kind: str
    question: str
    answer: str
    statement: str
    others: tuple[str, ...]


def load_facts() -> list[Fact]:
    """All facts, in the order of facts.json: by kind, best known first."""
    world = json.loads(Path(__file__).with_name("facts.json").read_text(encoding="utf-8"))
    facts = []
    for kind in world["kinds"]:
        answers = sorted(set(kind["facts"].values()))
        for subject, answer in kind["facts"].items():
            facts.append(
                Fact(
                    kind["name"],
                    kind["question"].format(subject=subject),
                    answer,
                    kind["statement"].format(subject=subject, answer=answer),
                    tuple(other for other in answers if other != answer),
                )
            )
    return facts


def held_out(question: str, choices: Sequence[str]) -> bool:
    """Whether this question with this set of choices, in any order, is kept for evaluation: one
    set in eight."""
    content = json.dumps([question, sorted(choices)])
    return hashlib.sha256(content.encode()).digest()[0] < 32


def evaluation_questions(n: int, num_choices: int, seed: int) -> list[Question]:
    """`n` held-out questions of `num_choices` choices, the same for the same seed everywhere."""
    facts, number = load_facts(), 0
    questions: list[Question] = []
    while len(questions) < n:
        draw = random.Random(f"evaluation/{seed}/{number}")
        number += 1
        fact = facts[int(draw.random() * len(facts))]
        choices = [fact.answer, *_shuffled(fact.others, draw)[: num_choices - 1]]
        if held_out(fact.question, choices):
            choices = _shuffled(choices, draw)
            name = f"miniature-{num_choices}-{seed}-{number - 1}"
            answer = choices.index(fact.answer)
            questions.append(Question(fact.question, choices, id=name, answer=answer))
    return questions


def _shuffled(items: Sequence[str], draw: random.Random) -> list[str]:
    # By sorting draws: random() is the one method whose sequence Python promises to keep.
    keys = [draw.random() for _ in items]
    return [item for _, item in sorted(zip(keys, items, strict=True))]
