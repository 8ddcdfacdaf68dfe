"""A tree of tokens, the state that flows along its edges, and the mask that says both.

python -m tools.draw_state    writes docs/recurrent.png, and docs/recurrent-dark.png
"""

from __future__ import annotations

from pathlib import Path

import matplotlib
import matplotlib.patches
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from minise import pack
from minise.layout import Layout
from tools.draw_idea import COLOURS, DARK, STYLE

WORDS = ("Which", "bird?", "(A)", "oak", "wren", "(B)", "ant")
PREFIX, BRANCHES = [0, 1], [[2, 3], [2, 4], [5, 6]]
HEIGHTS = (0, 0, 1, 1.5, 0.5, -1, -1)  # of the tokens, in the order of their rows
OTHER = COLOURS[1]


def draw() -> Figure:
    layout = pack(PREFIX, BRANCHES, tree=True)
    figure = Figure(figsize=(8.6, 3.2), layout="constrained")
    tree, mask = figure.subplots(1, 2, width_ratios=(1.7, 1))
    draw_tree(tree, layout)
    draw_mask(mask, layout)
    return figure


def draw_tree(axes: Axes, layout: Layout) -> None:
    """Each token at its depth, an arrow from its parent, and the way that a plain row takes."""
    axes.set_title("A state begins where the parent's ended")
    text_colour = matplotlib.rcParams["text.color"]
    places = [(depth, HEIGHTS[row]) for row, depth in enumerate(layout.positions.tolist())]
    for row, parent in enumerate(layout.parents.tolist()):
        axes.text(*places[row], WORDS[layout.tokens[row]], ha="center", va="center", zorder=3)
        if parent >= 0:
            line(axes, places[parent], places[row], COLOURS[2], "-")
    leaving = [
        row for row, parent in enumerate(layout.parents.tolist()) if parent not in (row - 1,)
    ]
    for row in leaving:
        line(axes, places[row - 1], places[row], OTHER, ":")
    axes.text(0, -1.25, "state along the path", color=COLOURS[2])
    axes.text(0, -1.6, "what a row without a mask hands on", color=OTHER)
    axes.set(xlim=(-0.4, 3.4), ylim=(-1.8, 2.0))
    axes.set_axis_off()
    axes.title.set_color(text_colour)


def line(
    axes: Axes, start: tuple[float, float], end: tuple[float, float], colour: str, style: str
) -> None:
    arrow = {"arrowstyle": "->", "color": colour, "linestyle": style, "lw": 1.6}
    arrow |= {"shrinkA": 17, "shrinkB": 17}
    axes.annotate("", xy=end, xytext=start, arrowprops=arrow)


def draw_mask(axes: Axes, layout: Layout) -> None:
    """The mask; in each row the last column before the diagonal is the parent."""
    axes.set_title("The mask says which: the last\ncell before the diagonal")
    T = len(layout.tokens)
    for row in range(T):
        for column in range(T):
            if not layout.mask[row, column]:
                continue
            is_parent = column == int(layout.parents[row])
            colour = COLOURS[2] if is_parent else COLOURS[0]
            axes.add_patch(
                matplotlib.patches.Rectangle(
                    (column - 0.45, row - 0.45),
                    0.9,
                    0.9,
                    color=colour,
                    alpha=1 if is_parent else 0.45,
                )
            )
    words = [WORDS[token] for token in layout.tokens]
    axes.set(xlim=(-0.5, T - 0.5), ylim=(T - 0.5, -0.5), aspect="equal")
    axes.set_xticks(range(T), words, rotation=60)
    axes.set_yticks(range(T), words)
    axes.tick_params(length=0, colors=matplotlib.rcParams["text.color"])
    for side in axes.spines.values():
        side.set_visible(False)


def main() -> None:
    for style, name in ((STYLE, "recurrent.png"), (DARK, "recurrent-dark.png")):
        with matplotlib.rc_context(style):
            draw().savefig(Path("docs") / name)


if __name__ == "__main__":
    main()
