"""A sample: its line in a file, the same with other probabilities, and what is wrong with it."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest

from minise.methods.sample import Sample

SAMPLE = Sample(
    id="q7",
    seed=2,
    question_hash="ab12",
    answer=1,
    prediction=0,
    probabilities=[0.5, 0.3, 0.2],
    scores=[0.6, 0.4, 0.2],
    tokens=40,
    seconds=0.5,
    logits=[1.5, 1.0, 0.5],
    notes={"rounds": 2},
)


def test_its_line_gives_the_same_sample_again() -> None:
    sample = replace(SAMPLE, probabilities=[0.1 + 0.2, 0.4, 1 - 0.4 - (0.1 + 0.2)])
    line = sample.line()
    assert line.endswith("}\n")
    assert line.count("\n") == 1
    assert Sample(**json.loads(line)) == sample


def test_its_line_leaves_out_what_is_none_except_the_answer() -> None:
    names = set(json.loads(replace(SAMPLE, answer=None, notes=None).line()))
    assert "answer" in names
    assert not names & {"notes", "groups", "text", "cluster"}


def test_other_probabilities_leave_nothing_of_the_earlier_answer_but_its_tokens() -> None:
    assert SAMPLE.remade([0.2, 0.2, 0.6]) == replace(
        SAMPLE,
        prediction=2,
        probabilities=[0.2, 0.2, 0.6],
        scores=[0.2, 0.2, 0.6],
        seconds=None,
        logits=None,
        notes=None,
    )
    assert SAMPLE.remade([0.4, 0.4, 0.2]).prediction == 0  # the first of equals
    assert SAMPLE.key == (2, "q7")


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({}, ""),
        ({"answer": None, "seconds": None, "logits": None, "notes": None}, ""),
        ({"id": 7}, "id, question_hash and cluster must be text"),
        ({"seed": True}, "seed, answer, prediction, tokens integers"),
        ({"tokens": 2**63 - 1}, ""),
        ({"tokens": 2**63}, "seed, answer, prediction, tokens integers"),
        ({"answer": 3}, "answer 3 and prediction 0 must be choices"),
        ({"prediction": -1}, "answer 1 and prediction -1 must be choices"),
        ({"scores": [0.5, math.nan, 0.2]}, "must be a finite number for each of 3 choices"),
        ({"probabilities": [0.5, 0.5]}, "must be a finite number for each of 3 choices"),
        ({"probabilities": [0.5, 0.3, 0.3]}, "must sum to 1"),
        ({"probabilities": [1.5, -0.3, -0.2]}, "must sum to 1"),
        ({"seconds": math.inf}, "seconds must be a number, notes an object"),
        ({"notes": [1]}, "seconds must be a number, notes an object"),
        ({"text": {"question": "Q", "choices": ["a"]}}, "a question and 3 choices"),
    ],
    ids=str,
)
def test_the_problem_of_a_sample_is_stated_in_words(change: dict[str, Any], problem: str) -> None:
    stated = replace(SAMPLE, **change).problem()
    assert problem in stated
    assert bool(stated) == bool(problem)
