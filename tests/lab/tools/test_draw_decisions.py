"""The picture of a request has its questions, and the mask of its tree."""

from typing import Any

import numpy as np
import pytest

pytest.importorskip("matplotlib")

import matplotlib
from matplotlib.colors import to_rgb

from minise import load, pack
from minise.lab.data.typed import read_questions
from minise.lab.evaluation.pipeline import join
from minise.loading import DEFAULT_MODEL
from tools.draw_decisions import (
    COLOURS,
    QUESTIONS,
    STATE,
    STATE_COLOUR,
    STYLE,
    drawn,
    prompts_of_each,
)


@pytest.fixture(scope="module")
def axes() -> list[Any]:
    with matplotlib.rc_context(STYLE):
        return drawn().axes


def test_the_tree_has_every_question_and_option(axes: list[Any]) -> None:
    words = " ".join(text.get_text() for text in axes[0].texts)
    assert " ".join(STATE.split()) in " ".join(words.split())
    for typed in read_questions(STATE, QUESTIONS).values():
        assert typed.question.text.removeprefix(f"{STATE}\n\n") in words
        for choice in typed.question.choices:
            assert f"(A) {choice}\n" in words


def test_the_mask_is_the_tree_s_and_each_question_has_rows_of_its_own_colour(
    axes: list[Any],
) -> None:
    lm = load(DEFAULT_MODEL)
    several = prompts_of_each(lm)
    whole = join(several)
    layout = pack(whole.prefix, whole.branches, tree=True)
    (image,) = axes[1].images
    cells = np.asarray(image.get_array())
    assert np.array_equal(cells[..., 3] > 0, layout.mask.numpy())
    state = len(whole.prefix)
    assert np.allclose(cells[state - 1, 0, :3], to_rgb(STATE_COLOUR))
    ends = iter(layout.ends.tolist())
    for prompts, colour in zip(several, COLOURS, strict=True):
        for _ in prompts.branches:
            row = cells[next(ends)]
            assert np.allclose(row[row[:, 3] > 0, :3], to_rgb(colour))
