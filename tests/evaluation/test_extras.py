"""What experiments measure besides: the texts that a method wrote, and single questions."""

from __future__ import annotations

from typing import Any

import pytest

from minise.evaluation.extras import reasoning_texts, single_questions
from minise.evaluation.metrics import summarise
from minise.methods.sample import Sample


def sample(answer: int, prediction: int, K: int = 2, **notes: Any) -> Sample:
    scores = [float(i == prediction) for i in range(K)]
    return Sample(
        f"q{answer}{prediction}{K}", 0, "", answer, prediction, scores, scores, 9, notes=notes
    )


WROTE = [
    sample(0, 1, said=0, cut=False, new_tokens=10),  # the text is right alone
    sample(1, 1, said=0, cut=False, new_tokens=20),  # the text is wrong alone
    sample(0, 0, said=None, cut=True, new_tokens=30),
    sample(1, 1, K=4, said=None, cut=True, new_tokens=30),
    sample(1, 1, K=3, said=2, cut=True, new_tokens=40),
]


def test_reasoning_text_is_scored_by_the_choice_that_it_names() -> None:
    measured = reasoning_texts({"cot": WROTE})["cot"]
    assert measured["accuracy"] == 0.2
    # One right of five: as any five questions of which the first is right.
    one = [sample(i, 0, K=5) for i in range(5)]
    assert measured["interval"] == pytest.approx(summarise(one)["accuracy_interval"])
    assert measured["names_none"] == 0.4
    assert measured["cut"] == 0.6
    assert measured["new_tokens"] == 26


def test_a_method_that_writes_no_text_is_not_in_the_table_of_reasoning() -> None:
    plain = [Sample("q", 0, "", 0, 0, [1.0, 0.0], [1.0, 0.0], 3), sample(1, 1)]
    assert reasoning_texts({"standard": plain, "cot": WROTE}).keys() == {"cot"}
    assert reasoning_texts({"both": [*plain, *WROTE]}) == {}


def question(id: str, p: list[float]) -> Sample:
    best = p.index(max(p))
    return Sample(id, 0, "", 0, best, p, p, 9)


def test_50_single_questions_are_listed_with_probabilities_to_four_places() -> None:
    questions = single_questions(
        {"standard": [question(str(n), [1 / 3, 2 / 3]) for n in range(60)]}
    )
    assert list(questions) == [str(n) for n in range(50)]
    assert questions["0"]["methods"] == {"standard": [0.3333, 0.6667]}


def test_a_single_question_without_text_has_labels_as_choices() -> None:
    questions = single_questions({"standard": [question("a", [0.2, 0.8])]})
    assert (questions["a"]["question"], questions["a"]["choices"]) == ("", ["A", "B"])
