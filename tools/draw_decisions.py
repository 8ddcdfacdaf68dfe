"""A request of three questions as one tree of tokens, and its mask.

    python -m tools.draw_decisions    writes docs/decisions.png, and docs/decisions-dark.png

The tokens are those of the method presence: a prompt for each option, of which the options of a
question share its text, and all share the state.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from textwrap import fill
from typing import Any

import matplotlib
import numpy as np
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure

from minise import LanguageModel, Prompts, load, pack
from minise.lab.data.typed import read_questions
from minise.lab.evaluation.pipeline import join
from minise.lab.methods.presence import Presence
from minise.loading import DEFAULT_MODEL
from tools.draw_idea import DARK, STYLE

STATE = "Ottawa is a city in Canada."
QUESTIONS: dict[str, Any] = {
    "capital": {"type": "noul", "instructions": "Is Ottawa a capital?"},
    "country": {
        "type": "choice",
        "instructions": "Where is it?",
        "criteria": {"ca": "Canada", "pe": "Peru", "ke": "Kenya"},
    },
    "size": {
        "type": "score",
        "instructions": "How large is it?",
        "criteria": ["small", "large"],
    },
}
CAPTION = (
    "Left: the tree, by the method presence. The state is its trunk, each question a branch, each "
    "option a leaf at whose end its probability is read. Right: the mask. A row attends to the "
    "coloured columns: to the state, its own question and its own option. The positions of every "
    "question continue from the state."
)
INCHES = (9.8, 4.9)
STATE_COLOUR = "#8c8c8c"
COLOURS = ("#d55e00", "#0072b2", "#009e73")  # of the questions: Okabe and Ito's


def prompts_of_each(lm: LanguageModel) -> list[Prompts]:
    """Those of each question."""
    several = []
    for one in read_questions(STATE, QUESTIONS).values():
        _, prompts = Presence().prompts(lm, one.question)
        several.append(prompts)
    return several


def drawn() -> Figure:
    lm = load(DEFAULT_MODEL)
    several = prompts_of_each(lm)
    whole = join(several)
    layout = pack(whole.prefix, whole.branches, tree=True)
    T = len(layout.tokens)
    question_of_row = np.full(T, -1)  # -1: the state
    paths = iter(layout.paths())
    for number, prompts in enumerate(several):
        for _ in prompts.branches:
            beyond = next(paths)[len(whole.prefix) :]
            question_of_row[beyond] = number

    figure = Figure(figsize=INCHES, layout="constrained")
    tree, mask = figure.subplots(1, 2, width_ratios=(1.5, 1))
    draw_tree(tree, several)
    cells = np.zeros((T, T, 4))
    for row in range(T):
        number = question_of_row[row]
        cells[row] = to_rgba(COLOURS[number] if number >= 0 else STATE_COLOUR, 0.75)
    cells[~layout.mask.numpy()] = 0
    mask.imshow(cells, extent=(0, T, T, 0), interpolation="nearest")
    mask.set(xticks=[], yticks=[], title=f"{T} tokens")
    width = int(17 * INCHES[0])
    figure.supxlabel(fill(CAPTION, width), fontsize="small", x=0.01, ha="left")
    return figure


def draw_tree(ax: Any, several: Sequence[Prompts]) -> None:
    """The state, the questions and their options from left to right, in the order of the rows."""
    ax.set(xlim=(0, 1), xticks=[], yticks=[], title="state, questions, options")
    ax.spines[:].set_visible(False)
    leaf = 0.5
    middle = sum(len(prompts.branches) for prompts in several) / 2
    ax.set_ylim(2 * middle, 0)
    ax.annotate(fill(STATE, 12), (0.0, middle), va="center", color=STATE_COLOUR, weight="bold")
    typed = read_questions(STATE, QUESTIONS).values()
    for asked, (id, about), colour in zip(typed, QUESTIONS.items(), COLOURS, strict=True):
        choices = asked.question.choices
        y = leaf + (len(choices) - 1) / 2
        ax.plot((0.2, 0.28), (middle, y), color=STATE_COLOUR, lw=1.5)
        words = f"{id} ({about['type']}):\n{about['instructions']}"
        ax.annotate(words, (0.29, y), va="center", color=colour)
        for choice in choices:
            ax.plot((0.6, 0.7), (y, leaf), color=colour, lw=1.5)
            ax.annotate(f"(A) {choice}\n(B) None of the above", (0.71, leaf), va="center", size=8)
            leaf += 1


if __name__ == "__main__":
    for name, style in (("decisions.png", STYLE), ("decisions-dark.png", DARK)):
        with matplotlib.rc_context(style):
            drawn().savefig(Path(__file__).parents[1] / "docs" / name, metadata={"Software": None})
