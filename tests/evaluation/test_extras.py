"""What is reported of the texts that a method wrote."""

from __future__ import annotations

from typing import Any

import pytest

from minise.evaluation.metrics import summarise
from minise.evaluation.reasoning_study import summarise_reasoning
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


def test_the_text_is_scored_by_the_choice_that_it_names() -> None:
    found = summarise_reasoning({"cot": WROTE})["cot"]
    assert found["accuracy"] == 0.2
    # One right of five: as any five questions of which the first is right.
    one = [sample(i, 0, K=5) for i in range(5)]
    assert found["interval"] == pytest.approx(summarise(one)["accuracy_interval"])
    assert found["names_none"] == 0.4
    assert found["cut"] == 0.6
    assert found["new_tokens"] == 26


def test_a_method_that_writes_nothing_has_no_part() -> None:
    plain = [Sample("q", 0, "", 0, 0, [1.0, 0.0], [1.0, 0.0], 3), sample(1, 1)]
    assert summarise_reasoning({"standard": plain, "cot": WROTE}).keys() == {"cot"}
    assert summarise_reasoning({"both": [*plain, *WROTE]}) == {}
