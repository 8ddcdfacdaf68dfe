"""The picture of the idea has the groups, the mask and the numbers of the real question."""

import re
from typing import Any

import numpy as np
import pytest

pytest.importorskip("matplotlib")

import matplotlib

from minise import ask, load, pack
from minise.commands.options import QUESTION
from minise.loading import DEFAULT_MODEL
from tools.draw_idea import METHOD, STYLE, idea


@pytest.fixture(scope="module")
def columns() -> list[Any]:
    with matplotlib.rc_context(STYLE):
        return idea().axes


def words(ax: Any) -> list[str]:
    return [text.get_text() for text in ax.texts]


def test_the_columns_show_the_question_its_groups_and_probabilities(columns: list[Any]) -> None:
    asked, sequence, _, ends, mean = columns
    answer = ask(load(DEFAULT_MODEL), METHOD, QUESTION)
    lines = [" ".join(text.split()) for text in words(asked)]
    assert lines == [QUESTION.text, *QUESTION.choices]
    shown = re.findall(r"\([A-D]\) (.*)", "\n".join(words(sequence)))
    first = answer.groups[:2]  # two groups of four are a trial
    assert shown == [QUESTION.choices[i] for group in first for i in group.choices]
    shares = [p for group in first for p in (*group.probabilities.tolist(), group.null)]
    assert words(ends) == [str(round(100 * p)) for p in shares]
    percent = [str(round(100 * p)) for p in answer.scores.tolist()]
    assert words(mean) == [*QUESTION.choices, *percent]
    assert [ax.get_title(loc="left").split()[0] for ax in columns] == ["1.", "2.", "3.", "4.", "5."]
    assert f"all {len(answer.groups)} share one sequence" in sequence.get_title(loc="left")
    assert {sum(i in one.choices for one in answer.groups) for i in range(8)} == {20}
    assert "its 20 groups" in mean.get_title(loc="left")


def test_the_mask_is_that_of_the_packed_sequence_with_its_positions(columns: list[Any]) -> None:
    lm = load(DEFAULT_MODEL)
    _, prompts = METHOD.prompts(lm, QUESTION)
    layout = pack(prompts.prefix, prompts.branches[:2])
    mask = columns[2]
    (image,) = mask.images
    assert np.array_equal(np.asarray(image.get_array())[..., 3] > 0, layout.mask.numpy())
    assert image.get_extent() == [0, len(layout.tokens), len(layout.tokens), 0]
    stops = [int(layout.positions[end]) for end in layout.ends]
    assert words(mask) == [f"positions {len(prompts.prefix)} to {stop}" for stop in stops]


def test_a_bar_is_as_long_as_its_number_and_stands_beside_its_line(columns: list[Any]) -> None:
    _, sequence, _, ends, mean = columns
    lines = [text for text in sequence.texts if text.get_text().startswith("(")]
    for ax, beside in ((ends, lines), (mean, mean.texts[: len(QUESTION.choices)])):
        numbers = [text for text in ax.texts if text.get_text().isdigit()]
        bars = [path.vertices for each in ax.collections for path in each.get_paths()]
        lengths = [bar[1, 0] - bar[0, 0] for bar in bars]
        percent = [int(text.get_text()) for text in numbers]
        assert np.array(lengths) / max(lengths) == pytest.approx(np.array(percent) / max(percent))
        heights = [text.xy[1] for text in beside]
        assert [bar[0, 1] for bar in bars] == pytest.approx(heights)
        assert [text.xy[1] for text in numbers] == pytest.approx(heights)
