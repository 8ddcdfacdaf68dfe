"""Answers as the page shows them: they are those of the library, rounded."""

from __future__ import annotations

import pytest

from minise import Question, self_ensemble
from minise.explaining.answers import rounded_null
from minise.explaining.page import explain
from tests.support.explained import SETTINGS


def test_probabilities_have_six_digits(page) -> None:
    shown = [p for group in page.data["groups"] for p in [*group["probabilities"], group["null"]]]
    for digits in (5, 6):
        assert (shown == [round(p, digits) for p in shown]) == (digits == 6)


def test_the_running_mean_equals_the_answer_with_fewer_trials(lm, page, bird) -> None:
    for trials, scores in enumerate(page.data["self_ensemble"]["running"], 1):
        fewer = self_ensemble(lm, bird, **{**SETTINGS, "trials": trials})
        assert scores == pytest.approx(fewer.scores.tolist(), abs=1e-6)


def test_a_complete_grouping_has_no_error(lm) -> None:
    two = Question("Which is a bird?", ["wren", "a trout", "oak"])
    page = explain(lm, two, group_size=2, grouping="exact")
    assert "is asked, in" in page.html
    ensemble = page.data["self_ensemble"]
    assert ensemble["errors"] == [[0.0] * 3]  # all orders are one trial


def test_no_null_option_stays_none() -> None:
    assert rounded_null(None) is None
    assert rounded_null(0.12345678) == 0.123457
