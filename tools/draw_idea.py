"""The idea in one picture: question -> groups -> one sequence with its mask -> mean.

    python -m tools.draw_idea    writes docs/idea.png, and docs/idea-dark.png for a dark page

The built-in question, with the options of `minise ask`. The groups, their sequence and its mask are
those of the first trial; the means are over all trials.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from textwrap import fill
from typing import Any

import matplotlib
import numpy as np
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure

from minise import SelfEnsemble, ask, load, pack
from minise.commands.options import QUESTION
from minise.layout import Layout
from minise.loading import DEFAULT_MODEL

METHOD = SelfEnsemble(group_size=4, trials=20)
TITLES = (
    "1. A question with\n{choices} choices",
    "2. Trial 1 of {trials}: {shown} random groups;\nall {groups} share one sequence",
    "3. Its mask: a row attends to\nthe coloured columns",
    "4. Softmax at the\nend of each group",
    "5. For each choice, the\nmean over its {trials} groups",
)
CAPTION = (
    "The built-in question of `minise ask`, and a model of 2 million parameters. 3: the positions "
    "of every group continue from the question. 4 and 5: percent. 5: a choice is in one group of "
    "each trial; the mean is its score (Eq. 2)."
)
INCHES = (9.8, 4.3)
WIDTHS = (1.3, 2.1, 2.9, 1.3, 2.0)
# The tokens that all groups see, and each group: Okabe and Ito's, for colour-blind readers, too.
COLOURS = ("#8c8c8c", "#d55e00", "#0072b2")
STYLE = {"font.size": 9, "axes.titlesize": 9, "savefig.dpi": 130, "text.parse_math": False}
DARK = {
    **STYLE,
    "figure.facecolor": "#0d1117",
    "axes.facecolor": "#0d1117",
    "text.color": "#d6dbe1",
    "axes.edgecolor": "#d6dbe1",
}


def idea() -> Figure:
    lm = load(DEFAULT_MODEL)
    plan, prompts = METHOD.prompts(lm, QUESTION)
    answer = ask(lm, METHOD, QUESTION)
    branches = prompts.branches[: len(plan.groups.trials[0])]
    layout = pack(prompts.prefix, branches)
    texts = [lm.tokenizer.decode(ids) for ids in (prompts.prefix, *branches)]
    figure = Figure(figsize=INCHES, layout="constrained")
    columns = figure.subplots(1, len(WIDTHS), width_ratios=WIDTHS)
    numbers = {
        "choices": len(QUESTION.choices),
        "trials": METHOD.trials,
        "shown": len(branches),
        "groups": len(answer.groups),
    }
    for ax, title in zip(columns, TITLES, strict=True):
        ax.set_title(title.format(**numbers), loc="left")
        ax.set(xticks=[], yticks=[], xlim=(0, 1), ylim=(len(layout.tokens), 0))
        ax.spines[:].set_visible(False)
    asked, sequence, mask, ends, mean = columns

    _lines(asked, [fill(QUESTION.text, 16), *QUESTION.choices], 0, len(layout.tokens))
    # The rows at which the question and each group begin, and the row after the last.
    starts = [0, len(prompts.prefix), *(layout.ends + 1).tolist()]
    for part, text in enumerate(texts):
        lines = text.strip().split("\n")
        places = _lines(sequence, lines, starts[part], starts[part + 1], COLOURS[part])
        if part > 0:
            group = answer.groups[part - 1]
            shares = [*group.probabilities.tolist(), group.null or 0.0]
            _bars(ends, shares, places, COLOURS[part])
    _mask(mask, layout, starts)
    places = _lines(mean, QUESTION.choices, 0, len(layout.tokens))
    _bars(mean, answer.scores.tolist(), places, matplotlib.rcParams["text.color"], 0.42)
    figure.supxlabel(fill(CAPTION, int(17 * INCHES[0])), fontsize="small", x=0.01, ha="left")
    return figure


def _lines(ax: Any, lines: Sequence[str], start: int, stop: int, colour: Any = None) -> Any:
    """Lines of text beside these rows of the mask. Returns their middles."""
    places = start + (stop - start) * (np.arange(len(lines)) + 0.5) / len(lines)
    for line, y in zip(lines, places, strict=True):
        ax.annotate(line, (0.05 if colour else 0, y), va="center", fontsize=8)
    if colour:
        ax.vlines(0, start + 0.5, stop - 0.5, color=colour, lw=5)
    return places


def _bars(
    ax: Any, shares: Sequence[float], places: Sequence[float], colour: Any, left: float = 0
) -> None:
    """A bar and a whole number of percent beside it, for each share. More digits would depend on
    the machine."""
    room = 0.75 - left
    for share, y in zip(shares, places, strict=False):
        percent = round(100 * share)
        end = left + room * percent / 100
        ax.hlines(y, left, end, color=colour, lw=8)
        ax.annotate(percent, (end + 0.04, y), va="center", fontsize=8)


def _mask(ax: Any, layout: Layout, starts: Sequence[int]) -> None:
    """A row in the colour of its part, where it attends."""
    T = len(layout.tokens)
    cells = np.zeros((T, T, 4))
    for (start, stop), colour in zip(pairwise(starts), COLOURS, strict=True):
        cells[start:stop] = to_rgba(colour, 0.75)
    cells[~layout.mask.numpy()] = 0
    ax.imshow(cells, extent=(0, T, T, 0), aspect="auto", interpolation="nearest")
    ax.set_xlim(0, T)
    ax.spines[:].set_visible(True)
    for i, (start, stop) in enumerate(pairwise(starts)):
        if i > 0:  # a note where the mask is empty
            first = int(layout.positions[start])
            last = int(layout.positions[stop - 1])
            note = f"positions {first} to {last}"
            x = stop + 2 if i == 1 else starts[1] + 2
            ax.annotate(note, (x, (start + stop) / 2), va="center", fontsize=8)


if __name__ == "__main__":
    for name, style in (("idea.png", STYLE), ("idea-dark.png", DARK)):
        with matplotlib.rc_context(style):
            idea().savefig(Path(__file__).parents[1] / "docs" / name, metadata={"Software": None})
