"""The built-in question follows a rule, and its numbers are those that were measured."""

import re
from pathlib import Path

from minise import load, self_ensemble, standard
from minise.commands.ask import HOW_OFTEN
from minise.commands.options import QUESTION
from minise.lab.data.miniature import LARGEST, evaluation_questions
from minise.loading import DEFAULT_MODEL

ROOT = Path(__file__).parents[3]


def test_the_builtin_question_is_the_first_that_only_self_ensemble_gets_right() -> None:
    lm = load(DEFAULT_MODEL)
    first = next(
        q
        for q in evaluation_questions(50, LARGEST, seed=0)
        if standard(lm, q).prediction != q.answer == self_ensemble(lm, q).prediction
    )
    assert (first.text, first.choices, first.id) == (QUESTION.text, QUESTION.choices, QUESTION.id)
    assert first.answer == QUESTION.answer


def test_ask_says_how_often_each_is_right() -> None:
    """The numbers of docs/miniature.md, at eight choices."""
    percentages = re.findall(r"([\d.]+)%", HOW_OFTEN)
    study = (ROOT / "docs/miniature.md").read_text(encoding="utf-8")
    for method, number in zip(("standard", "self-ensemble"), percentages, strict=True):
        row = study.index(f"| tiny-llama | {method} |")
        cells = study[row:].partition("\n")[0].split("|")
        assert cells[-2].split()[0] == number
