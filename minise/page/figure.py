"""The first trial's packed sequence and its attention mask as SVG. Okabe and Ito's colours."""

from __future__ import annotations

import re
from xml.sax.saxutils import escape

from minise.engines import LanguageModel
from minise.layout import pack
from minise.method import Plan

CELL, LEFT, TOP = 12, 170, 30  # units of the picture
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#777777")
END = ' text-anchor="end"'
MARKS = {" ": "␣", "\n": "⏎", "\t": "⇥"}
# Control characters, and those that XML 1.0 forbids (section 2.2).
UNSEEN = re.compile("[^\x20-\x7e\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def mask_figure(lm: LanguageModel, plan: Plan) -> str:
    """The groups of the plan's first trial as SVG: a line for each token, with the tokens that it
    may attend to."""
    count = len(plan.groups.trials[0])
    layout = pack(plan.prefix, plan.branches[:count])
    T, ends = len(layout.tokens), layout.ends.tolist()
    decode, first = lm.tokenizer.decode, plan.prefix[:1]
    side, bottom = LEFT + T * CELL, TOP + T * CELL
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{side + 90}" height="{bottom + 12}" '
        'role="img" font-family="Helvetica, Arial, sans-serif" font-size="9">',
        f"<title>Attention mask of {T} packed tokens in {count} groups</title>",
        '<rect width="100%" height="100%" fill="#ffffff"/>',
        _text(LEFT - 50, TOP - 8, "token", END),
        _text(LEFT - 6, TOP - 8, "position", END),
        _text(LEFT, TOP - 8, "attends to"),
        f'<rect x="{LEFT}" y="{TOP}" width="{T * CELL}" height="{T * CELL}" fill="#f3f3f1"/>',
    ]
    for row, token in enumerate(layout.tokens.tolist()):
        y, group = TOP + row * CELL, sum(end < row for end in ends)
        colour = "#444444" if row < len(plan.prefix) else COLOURS[group % len(COLOURS)]
        text = decode([*first, token])[len(decode(first)) :] if row else decode([token])
        parts += [
            f'<g fill="{colour}">',
            _text(LEFT - 50, y + 9, "".join(MARKS.get(c, c) for c in text[:20]), END),
            _text(LEFT - 6, y + 9, str(int(layout.positions[row])), END),
        ]
        for column in layout.mask[row].nonzero().flatten().tolist():
            size = f'width="{CELL}" height="{CELL - 1}"'
            parts.append(f'<rect x="{LEFT + column * CELL}" y="{y}" {size}/>')
        parts += [_text(side + 6, y + 9, "← reads out")] * (row in ends) + ["</g>"]
    return "\n".join([*parts, "</svg>", ""])


def _text(x: int, y: int, text: str, style: str = "") -> str:
    shown = escape(UNSEEN.sub("\ufffd", text))
    return f'<text x="{x}" y="{y}"{style}>{shown}</text>'
