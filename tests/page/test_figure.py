"""The figure: the first trial's packed sequence and mask as SVG."""

from __future__ import annotations

from xml.etree import ElementTree

import torch

from minise import Question, pack
from minise.explaining.page import explain
from minise.method import SelfEnsemble
from tests.support.browser import FOREIGN, HOSTILE

SVG = "{http://www.w3.org/2000/svg}"


def test_the_figure_is_the_first_trials_mask(lm, page, bird) -> None:
    plan = SelfEnsemble(2, 1).plan(lm, bird, 4)
    layout = pack(plan.prefix, plan.branches)
    root = ElementTree.fromstring(page.figure)
    rows = [g for g in root.findall(f"{SVG}g") if g.find(f"{SVG}rect") is not None]
    assert len(rows) == len(layout.tokens)
    for row, drawn in enumerate(rows):
        visible = torch.zeros(len(rows), dtype=torch.bool)
        for rect in drawn.findall(f"{SVG}rect"):
            first, count = (float(rect.get(name)) for name in ("x", "width"))
            visible[int((first - 170) / 12) :][: int(count / 12)] = True
        assert torch.equal(visible, layout.mask[row])
        assert drawn.findall(f"{SVG}text")[1].text == str(int(layout.positions[row]))
    assert page.figure.count("reads out") == len(layout.ends)


def test_a_character_stands_at_the_last_of_its_tokens(lm) -> None:
    page = explain(lm, FOREIGN, group_size=2, trials=1)
    shown = page.data["packed"]["inside"]
    assert page.figure.count(">…</text>") == len(shown) > 10
    assert ">م</text>" in page.figure


def test_a_figure_with_hostile_text_is_well_formed(lm) -> None:
    page = explain(lm, Question(HOSTILE, [HOSTILE, "b"]), group_size=2, trials=1)
    ElementTree.fromstring(page.figure)
