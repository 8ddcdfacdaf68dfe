"""One question, and its page."""

from __future__ import annotations

import pytest

from minise import LanguageModel, Question
from minise.explaining.page import Page, explain
from tests.support.explained import SETTINGS


@pytest.fixture(scope="module")
def bird() -> Question:
    return Question(
        "Which is a bird?", ["wren", "a trout", "oak", "the red ant", "quartz"], answer=0
    )


@pytest.fixture(scope="module")
def page(lm: LanguageModel, bird: Question) -> Page:
    return explain(lm, bird, **SETTINGS)
