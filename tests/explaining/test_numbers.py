"""The page in a real browser: its numbers are those of the data, its masks those of the library."""

from __future__ import annotations

import re
from itertools import product

import numpy as np
import pytest
import torch

from minise import pack
from minise.explaining.page import Page
from minise.layout import causal_mask
from minise.method import SelfEnsemble
from tests.support.browser import ASKED, MARKS
from tests.support.browser import browser as browser
from tests.support.browser import explained as explained
from tests.support.browser import seen as seen
from tests.support.browser import show as show

pytestmark = MARKS


def test_the_switches_give_the_masks_and_positions_of_the_library(seen, explained) -> None:
    """Every combination, for every token."""
    lm, _ = explained
    plan = SelfEnsemble(2, 3).plan(lm, ASKED, 4)
    seen.page.select_option("#shown", "3")
    for merge, mask, restart, window in product(
        (False, True), (True, False), (True, False), (None, 16)
    ):
        seen.page.check(f"input[name=layout][value={'tree' if merge else 'packed'}]")
        seen.page.check(f"input[name=mask][value={'on' if mask else 'off'}]")
        seen.page.check(f"input[name=positions][value={'restart' if restart else 'run'}]")
        seen.page.select_option("#window", str(window or 0))
        layout = pack(plan.prefix, plan.branches, tree=merge)
        T = len(layout.tokens)
        expected = layout.mask if mask else causal_mask(T)
        positions = layout.positions if restart else torch.arange(T)
        if window:
            expected = expected & (positions[:, None] < positions[None] + window)
        found = seen.page.evaluate("tokens.map((_, row) => sees(row))")
        assert found == [row.nonzero().flatten().tolist() for row in expected]
        assert seen.page.evaluate("tokens.map((_, row) => position(row))") == positions.tolist()
        # And what is drawn is that.
        drawn = seen.page.evaluate(
            """() => {
              const pen = $("mask").getContext("2d"), T = tokens.length;
              const { data } = pen.getImageData(0, 0, T * cell, T * cell);
              return tokens.map((_, i) => tokens.reduce((n, _, j) =>
                n + (data[4 * (i * cell * T * cell + j * cell) + 3] > 0), 0));
            }"""
        )
        assert drawn == expected.sum(dim=1).tolist()


def test_a_picked_group_shows_its_prompt_and_what_it_says(seen, explained) -> None:
    data = explained[1].data
    for number, group in enumerate(data["groups"]):
        seen.page.click(f"#trials button[data-group='{number}'] >> nth=0")
        assert seen.page.text_content("#prompt") == data["shared"] + group["prompt"]
        rows = seen.rows("#said")
        said = [*group["probabilities"], group["null"]]
        assert [row[2] for row in rows] == [f"{100 * p:.1f}%" for p in said]
        chosen = [data["choices"][choice] for choice in group["choices"]]
        assert [row[1] for row in rows] == [*chosen, "None of the above"]
        assert f"index {data['packed']['ends'][number]}," in seen.text("#pointed")


def test_its_equality_is_the_datas(seen, explained) -> None:
    data = explained[1].data
    told = "Equal bit for bit: every token, every layer, in both engines."
    assert seen.text("#bitwise").startswith(told)
    for row in (5, data["packed"]["ends"][1]):
        seen.page.hover(f"#t{row}")
        shown = seen.rows("#equalitytable")
        for layer, cells in enumerate(shown):
            for cell, run in zip(cells[1:], data["equality"], strict=True):
                value = float(data["equality"][run][row, layer])
                assert cell == "not computed" if np.isnan(value) else number(cell) == value
    strips = seen.page.eval_on_selector_all(
        "#strips canvas", "all => all.map(c => [c.width, c.height])"
    )
    assert strips == [[len(data["packed"]["texts"]), 4]] * 4


class number:
    """A number as the page writes it, with two digits."""

    def __init__(self, text: str) -> None:
        self.value = float(text.replace(" · 10^", "e"))

    def __eq__(self, other: object) -> bool:
        return self.value == pytest.approx(other, rel=0.06)


def test_a_run_that_is_not_equal_is_not_called_so(show, explained) -> None:
    """As on a device whose kernels sum in another order."""
    off = {**explained[1].data}
    off["bitwise"] = {**off["bitwise"], "tree": False}
    seen = show(Page(off).html)
    told = "dense engine: equal bit for bit. tree engine: not bit for bit"
    assert seen.text("#bitwise").startswith(told)


def test_its_attention_is_the_datas(seen, explained) -> None:
    lm, page = explained
    data, H, L = page.data, lm.config.num_attention_heads, lm.config.num_hidden_layers
    at = data["packed"]["ends"][1]
    seen.page.click("#trials button[data-group='1'] >> nth=0")
    row = data["tree_rows"][at]
    starts = np.cumsum([0, *(L * H * (p + 1) for p in data["tree"]["positions"])])
    weights = data["attention"][starts[row] : starts[row + 1]].reshape(L, H, -1) / 255
    for layer, head in ((L, 0), (1, 1), (2, H)):
        seen.page.fill("#layer", str(layer))
        seen.page.fill("#head", str(head))
        own = weights[layer - 1].mean(axis=0) if head == 0 else weights[layer - 1, head - 1]
        shown = [float(cells[2].rstrip("%")) for cells in seen.rows("#attentiontable")]
        assert shown == pytest.approx((100 * own).tolist(), abs=0.051)
        assert seen.text("#layername") == f"{layer} of {L}"


def test_its_readouts_are_the_datas(seen, explained) -> None:
    data = explained[1].data
    seen.page.click("#trials button[data-group='2'] >> nth=0")
    for cells, layer in zip(seen.rows("#lenstable"), data["groups"][2]["lens"], strict=True):
        assert [float(cell.rstrip("%")) for cell in cells[1:]] == pytest.approx(
            [100 * p for p in layer], abs=0.051
        )
    assert "group 3 (trial 1)" in seen.text("#lens-title")


def test_its_dots_and_means_follow_the_slider(seen, explained) -> None:
    data = explained[1].data
    for trials in (3, 1, 2):
        seen.page.focus("#step")
        seen.page.fill("#step", str(trials))
        assert seen.text("#stepname") == f"{trials} of 3"
        assert seen.page.locator("#dots circle[data-dot]").count() == 5 * trials
        means = seen.page.eval_on_selector_all(
            "#dots > svg > path.mean", "all => all.map(one => one.getAttribute('d'))"
        )
        centres = [float(re.match(r"M([\d.]+) ", path)[1]) for path in means]
        low, high = seen.page.eval_on_selector(
            "#dots line.grid", "one => ['x1', 'x2'].map(end => Number(one.getAttribute(end)))"
        )
        scores = data["self_ensemble"]["running"][trials - 1]
        assert centres == pytest.approx([low + p * (high - low) for p in scores], abs=0.01)


def test_a_dot_tells_its_label_and_who_stood_beside_it(seen, explained) -> None:
    data = explained[1].data
    seen.page.focus("#dots")
    for _ in range(4):
        seen.page.keyboard.press("ArrowRight")
    dot = seen.page.evaluate("dots[state.dot]")
    group = data["groups"][dot["group"]]
    told = seen.text("#dot")
    assert f"under label {'AB'[dot['place']]}" in told
    for choice in group["choices"]:
        assert data["choices"][choice] in told
    assert f"{100 * group['probabilities'][dot['place']]:.1f}%" in told
    assert f"(trial {group['trial'] + 1})" in told


def test_its_table_of_answers_is_the_datas(seen, explained) -> None:
    data = explained[1].data
    ensemble, others = data["self_ensemble"], data["others"]
    columns = [ensemble["running"][-1], ensemble["errors"][-1], ensemble["probabilities"]]
    columns += [others["standard"]["probabilities"], others["cyclic"]["probabilities"]]
    for number_, cells in enumerate(seen.rows("#answer")):
        assert cells[0] == data["choices"][number_]
        assert [float(cell.rstrip("%")) for cell in cells[1:]] == pytest.approx(
            [100 * column[number_] for column in columns], abs=0.051
        )


def test_the_dots_and_the_means_are_tables_too(seen, explained) -> None:
    data = explained[1].data
    said = [(data["choices"][c], g["trial"], p) for g in data["groups"]
            for c, p in zip(g["choices"], g["probabilities"], strict=True)]  # fmt: skip
    rows = [(row[0], int(row[1]) - 1, row[4]) for row in seen.open_table("#dottable")]
    assert sorted(rows) == sorted((c, t, f"{100 * p:.1f}%") for c, t, p in said)
    for cells, scores in zip(
        seen.open_table("#formingtable"), data["self_ensemble"]["running"], strict=True
    ):
        shown = [float(cell.partition("%")[0]) for cell in cells[1:]]
        assert shown == pytest.approx([100 * p for p in scores], abs=0.051)


def test_a_trials_partition_is_written_out(seen, explained) -> None:
    data = explained[1].data
    seen.page.click("#trials tbody tr:nth-child(2) button >> nth=0")
    groups = [g for g in data["groups"] if g["trial"] == 1]
    written = seen.page.locator("#partition li").all_inner_texts()
    assert written == [", ".join(data["choices"][c] for c in g["choices"]) for g in groups]


def test_the_table_of_tokens_has_every_token(seen, explained) -> None:
    packed = explained[1].data["packed"]
    seen.page.select_option("#shown", "3")
    rows = seen.open_table("#tokentable")
    assert len(rows) == len(packed["texts"])
    assert [int(row[3]) for row in rows] == packed["positions"]
    assert [int(row[4]) for row in rows] == [p + 1 for p in packed["positions"]]
