"""How every figure looks: one style, lines that stay apart, panels that wrap, and a legend and a
caption that cover nothing."""

from __future__ import annotations

import io
import textwrap
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import ceil
from typing import Any, TypeVar

from minise.errors import printable, shorten
from minise.loading.plugin import load_extra

T = TypeVar("T")

PANELS_IN_A_ROW = 4
_WIDTH, _LEAST, _LINE = 3.3, 6.8, 0.17  # inches: a panel, a figure, the height of a line of text
_LETTERS, _SMALL = 14, 17  # letters on an inch: of titles, of smaller text
_STYLE: dict[str, Any] = {
    "font.family": "DejaVu Sans",  # it comes with matplotlib, and has τ
    **{"font.size": 9, "axes.titlesize": 9, "axes.labelsize": 9},
    **{"xtick.labelsize": 8, "ytick.labelsize": 8, "legend.fontsize": 8},
    **{"axes.spines.top": False, "axes.spines.right": False, "legend.frameon": False},
    **{"axes.grid": True, "axes.axisbelow": True, "grid.color": "#e4e4e4"},
    **{"lines.linewidth": 1.4, "lines.markersize": 4.5, "errorbar.capsize": 2},
    **{"figure.facecolor": "white", "axes.facecolor": "white", "savefig.dpi": 130},
    # Names are text, whatever a user's matplotlibrc says: "x$_{$" is no formula.
    **{"text.parse_math": False, "text.usetex": False},
}
_PAGE, _INK = "#0d1117", "#d6dbe1"  # the page is that of GitHub
_DARK: dict[str, Any] = {
    **dict.fromkeys(("figure.facecolor", "axes.facecolor"), _PAGE),
    **dict.fromkeys(("text.color", "axes.labelcolor", "xtick.color", "ytick.color"), _INK),
    **{"axes.edgecolor": _INK, "grid.color": "#2a3038"},
}
# Okabe and Ito's colours, which colour-blind readers can tell apart: grey for their black, which
# would hide intervals, and no yellow, which is hard to see on white.
_COLOURS = ("#777777", "#d55e00", "#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9")
# A dotted line is a bound, such as chance.
_DASHES, _HATCHES, _MARKERS = ("-", "--", "-."), ("", "///", "..."), "osD^vP*Xp"


def picture(figure: Any, kind: str, **options: Any) -> bytes:
    """Matplotlib's figure as the content of a file. `kind`: its ending, such as "png"."""
    content = io.BytesIO()
    figure.savefig(content, format=kind, **options)
    return content.getvalue()


@dataclass(frozen=True)
class Look:
    """How one thing is drawn, in every figure of a report."""

    colour: Any
    dash: str
    marker: str
    hatch: str

    @property
    def line(self) -> dict[str, Any]:
        return {"color": self.colour, "ls": self.dash, "marker": self.marker}

    @property
    def bar(self) -> dict[str, Any]:
        return {"color": self.colour, "hatch": self.hatch, "edgecolor": "white"}


def looks(names: Iterable[T], ordered: bool = False) -> dict[T, Look]:
    """A look for each name. The colours repeat after seven, with other dashes and hatches. Values
    that are `ordered` get the shades of one scale."""
    names = list(dict.fromkeys(names))
    colours: Sequence[Any] = _COLOURS
    if ordered:
        scale = load_extra("matplotlib").colormaps["viridis"]
        colours = [scale(0.8 * i / max(len(names) - 1, 1)) for i in range(len(names))]
    by_name = {}
    for i, name in enumerate(names):
        kind = (i if ordered else i // len(_COLOURS)) % len(_DASHES)
        marker = _MARKERS[i % len(_MARKERS)]
        by_name[name] = Look(colours[i % len(colours)], _DASHES[kind], marker, _HATCHES[kind])
    return by_name


@contextmanager
def style(dark: bool = False) -> Iterator[None]:
    """Draw and save figures in here. `dark`: light on dark, for a page that is dark. Raises
    InputError without matplotlib."""
    rc = {**_STYLE, **(_DARK if dark else {})}
    with load_extra("matplotlib").rc_context(rc), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of letters that the font does not have
        yield


def text_colour() -> Any:
    """That of the style in use, for lines which are drawn as text is: black on white."""
    return load_extra("matplotlib").rcParams["text.color"]


def sheet(
    panels: Sequence[tuple[str, T]],
    paint: Callable[..., None],
    rows: dict[str, tuple[str, float]],
    caption: str,
    sharey: bool = False,
) -> Any:
    """Matplotlib's figure of panels, each a title and what `paint(what, *axes)` draws.

    A panel has axes below each other: `rows` holds the label beside each, the label below it, and
    its height in inches. The legend, of all that is drawn with a label, stands above the panels and
    the caption below them.
    """
    columns = min(len(panels), PANELS_IN_A_ROW)
    bands = ceil(len(panels) / columns)
    # One or two panels get the room that a legend and a caption need.
    width = max(_WIDTH * columns, _LEAST)
    titles = [wrapped(shorten(title, 250), width / columns - 0.5) for title, _ in panels]
    figure = load_extra("matplotlib.figure").Figure(layout="constrained")
    heights = [height for _, height in rows.values()] * bands
    grid = {"squeeze": False, "sharey": sharey, "height_ratios": heights}
    axes = figure.subplots(len(heights), columns, **grid)
    for i, (_, what) in enumerate(panels):
        band, column = divmod(i, columns)
        of_panel = axes[len(rows) * band : len(rows) * (band + 1), column]
        of_panel[0].set_title(titles[i])
        for ax, (beside, (below, _)) in zip(of_panel, rows.items(), strict=True):
            ax.set_xlabel(below)
            ax.tick_params(labelbottom=bool(below) or ax is of_panel[-1])
            if column == 0:
                ax.set_ylabel(beside)
        paint(what, *of_panel)
    for ax in axes[-len(rows) :, (len(panels) - 1) % columns + 1 :].flat:
        ax.remove()
    lines = _legend_and_caption(figure, caption, width)
    lines += bands * (max(title.count("\n") for title in titles) + 1)
    figure.set_size_inches(width, sum(heights) + lines * _LINE)
    return figure


def _legend_and_caption(figure: Any, caption: str, width: float) -> int:
    """Draw both, in a figure so many inches wide. Returns how many lines of text they take."""
    keys: dict[str, Any] = {}
    for ax in figure.axes:
        for handle, label in zip(*ax.get_legend_handles_labels(), strict=True):
            keys.setdefault(label, handle)
    labels = [wrapped(key, 3, _SMALL) for key in keys]
    longest = max((len(line) for label in labels for line in label.split("\n")), default=1)
    in_a_line = max(1, int(width * _SMALL / (longest + 9)))
    if keys:
        figure.legend(keys.values(), labels, loc="outside upper center", ncols=in_a_line)
    text = wrapped(caption, width, _SMALL)
    figure.supxlabel(text, fontsize="small", x=0.01, ha="left")
    return ceil(len(keys) / in_a_line) + "".join([*labels, text]).count("\n") + 2


def wrapped(text: str, inches: float, letters: int = _LETTERS) -> str:
    """The text in lines that are no wider. Raises nothing, whatever the text holds."""
    width = int(inches * letters)
    lines = printable(text).split("\n")
    return "\n".join(textwrap.fill(line, width, break_on_hyphens=False) for line in lines)
