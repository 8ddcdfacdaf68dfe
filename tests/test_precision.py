"""How precise sampled groupings are is measured against the exact expectation, by looking up."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from minise import LanguageModel, Question, self_ensemble
from minise.evaluation import precision
from minise.evaluation.precision import measure_all, measure_question, summarise


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision, "TRIALS", (1, 3))
    monkeypatch.setattr(precision, "REPETITIONS", 4)


@pytest.fixture
def asked(question: Question) -> Question:
    return Question(question.text, question.choices, id="q", answer=3)


def test_looked_up_scores_are_those_of_running_the_groups(
    lm: LanguageModel, asked: Question
) -> None:
    cells = measure_question(lm, asked, group_size=2, seed=5)["cells"]
    exact = self_ensemble(lm, asked, 2, grouping="exact")
    assert cells["exact"]["nll"] == pytest.approx(-float(exact.probabilities[3].log()))
    for grouping in ("random", "balanced"):
        variance, nll, right = [], [], []
        for repetition in range(4):
            q = Question(asked.text, asked.choices, id=f"q/{repetition}")
            said = self_ensemble(lm, q, 2, 3, seed=5, grouping=grouping)
            variance.append(((said.scores - exact.scores) ** 2).mean())
            nll.append(-said.probabilities[3].log())
            right.append(float(said.prediction == 3))
        cell = cells[f"{grouping}-3"]
        assert cell["variance"] == pytest.approx(float(torch.stack(variance).mean()))
        assert cell["nll"] == pytest.approx(float(torch.stack(nll).mean()))
        assert cell["accuracy"] == pytest.approx(sum(right) / 4)


def test_a_balanced_number_is_worth_the_random_trials_of_the_same_variance() -> None:
    def line(number: int) -> dict[str, object]:
        spread = 1 + number % 3
        shared = {"accuracy": 0.5, "nll": 1.0}
        return {
            "id": str(number),
            "cells": {
                "random-1": {"variance": 6.0 * spread, "tokens": 10, **shared},
                "random-3": {"variance": 2.0 * spread, "tokens": 30, **shared},
                "balanced-1": {"variance": 3.0 * spread, "tokens": 11, **shared},
                "balanced-3": {"variance": 0.5 * spread, "tokens": 33, **shared},
                "exact": {"variance": 0.0, "tokens": 99, **shared},
            },
        }

    cells = summarise([line(number) for number in range(30)], resamples=50)["cells"]
    assert cells["balanced-1"]["worth"] == pytest.approx(2)
    assert cells["balanced-1"]["worth_interval"] == pytest.approx([2, 2])
    assert cells["balanced-1"]["tokens_of_worth"] == pytest.approx(20)
    assert cells["balanced-3"]["worth"] == pytest.approx(12)
    assert cells["balanced-3"]["tokens_of_worth"] is None


def test_a_cut_run_goes_on_and_redoes_a_torn_line_alone(
    lm: LanguageModel, asked: Question, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "precision.jsonl"
    others = [Question(f"{asked.text} {n}", asked.choices, answer=n) for n in range(3)]
    whole = measure_all(lm, others, 2, 0, path)
    text = path.read_text()
    path.write_text(text[:-9])
    asked_again = []
    once = precision.measure_question

    def counted(lm, question, group_size, seed):
        asked_again.append(question.id)
        return once(lm, question, group_size, seed)

    monkeypatch.setattr(precision, "measure_question", counted)
    assert measure_all(lm, others, 2, 0, path) == whole
    assert asked_again == [others[2].id]
    assert path.read_text() == text
    assert [json.loads(line)["id"] for line in text.splitlines()] == [q.id for q in others]
