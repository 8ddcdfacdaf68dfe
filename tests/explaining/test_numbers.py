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
from tests.support.browser import MARKS, QUESTION
from tests.support.browser import browser as browser
from tests.support.browser import explained as explained
from tests.support.browser import show as show
from tests.support.browser import view as view

pytestmark = MARKS


def test_the_switches_give_the_masks_and_positions_of_the_library(view, explained) -> None:
    """Every combination, for every token."""
    lm, _ = explained
    plan = SelfEnsemble(2, 3).plan(lm, QUESTION, 4)
    view.page.select_option("#shown", "3")
    for merge, mask, restart, window in product(
        (False, True), (True, False), (True, False), (None, 16)
    ):
        view.page.check(f"input[name=layout][value={'tree' if merge else 'packed'}]")
        view.page.check(f"input[name=mask][value={'on' if mask else 'off'}]")
        view.page.check(f"input[name=positions][value={'restart' if restart else 'run'}]")
        view.page.select_option("#window", str(window or 0))
        layout = pack(plan.prefix, plan.branches, tree=merge)
        T = len(layout.tokens)
        expected = layout.mask if mask else causal_mask(T)
        positions = layout.positions if restart else torch.arange(T)
        if window:
            expected = expected & (positions[:, None] < positions[None] + window)
        columns = view.page.evaluate("tokens.map((_, row) => sees(row))")
        assert columns == [row.nonzero().flatten().tolist() for row in expected]
        assert view.page.evaluate("tokens.map((_, row) => position(row))") == positions.tolist()
        # And what is drawn is that.
        drawn = view.page.evaluate(
            """() => {
              const pen = $("mask").getContext("2d"), T = tokens.length;
              const { data } = pen.getImageData(0, 0, T * cell, T * cell);
              return tokens.map((_, i) => tokens.reduce((n, _, j) =>
                n + (data[4 * (i * cell * T * cell + j * cell) + 3] > 0), 0));
            }"""
        )
        assert drawn == expected.sum(dim=1).tolist()


def test_a_selected_group_shows_its_prompt_and_probabilities(view, explained) -> None:
    data = explained[1].data
    for number, group in enumerate(data["groups"]):
        view.page.click(f"#trials button[data-group='{number}'] >> nth=0")
        assert view.page.text_content("#prompt") == data["shared"] + group["prompt"]
        rows = view.rows("#said")
        probabilities = [*group["probabilities"], group["null"]]
        assert [row[2] for row in rows] == [f"{100 * p:.1f}%" for p in probabilities]
        chosen = [data["choices"][choice] for choice in group["choices"]]
        assert [row[1] for row in rows] == [*chosen, "None of the above"]
        assert f"index {data['packed']['ends'][number]}," in view.text("#pointed")


def test_the_page_shows_the_equality_in_its_data(view, explained) -> None:
    data = explained[1].data
    sentence = "Equal bit for bit: every token, every layer, in both engines."
    assert view.text("#bitwise").startswith(sentence)
    for row in (5, data["packed"]["ends"][1]):
        view.page.hover(f"#t{row}")
        shown = view.rows("#equalitytable")
        for layer, cells in enumerate(shown):
            for cell, run in zip(cells[1:], data["equality"], strict=True):
                value = float(data["equality"][run][row, layer])
                assert cell == "not computed" if np.isnan(value) else number(cell) == value
    strips = view.page.eval_on_selector_all(
        "#strips canvas", "all => all.map(c => [c.width, c.height])"
    )
    assert strips == [[len(data["packed"]["texts"]), 4]] * 4


class number:
    """A number as the page writes it, with two digits."""

    def __init__(self, text: str) -> None:
        self.value = float(text.replace(" · 10^", "e"))

    def __eq__(self, other: object) -> bool:
        return self.value == pytest.approx(other, rel=0.06)


def test_a_run_that_is_not_equal_is_not_called_equal(show, explained) -> None:
    """As on a device whose kernels sum in another order."""
    off = {**explained[1].data}
    off["bitwise"] = {**off["bitwise"], "tree": False}
    view = show(Page(off).html)
    sentence = "dense engine: equal bit for bit. tree engine: not bit for bit"
    assert view.text("#bitwise").startswith(sentence)


def test_the_page_shows_the_attention_in_its_data(view, explained) -> None:
    lm, page = explained
    data, H, L = page.data, lm.config.num_attention_heads, lm.config.num_hidden_layers
    at = data["packed"]["ends"][1]
    view.page.click("#trials button[data-group='1'] >> nth=0")
    row = data["tree_rows"][at]
    starts = np.cumsum([0, *(L * H * (p + 1) for p in data["tree"]["positions"])])
    weights = data["attention"][starts[row] : starts[row + 1]].reshape(L, H, -1) / 255
    for layer, head in ((L, 0), (1, 1), (2, H)):
        view.page.fill("#layer", str(layer))
        view.page.fill("#head", str(head))
        row_weights = weights[layer - 1].mean(axis=0) if head == 0 else weights[layer - 1, head - 1]
        shown = [float(cells[2].rstrip("%")) for cells in view.rows("#attentiontable")]
        assert shown == pytest.approx((100 * row_weights).tolist(), abs=0.051)
        assert view.text("#layername") == f"{layer} of {L}"


def test_the_page_shows_the_readouts_in_its_data(view, explained) -> None:
    data = explained[1].data
    view.page.click("#trials button[data-group='2'] >> nth=0")
    for cells, layer in zip(view.rows("#lenstable"), data["groups"][2]["lens"], strict=True):
        assert [float(cell.rstrip("%")) for cell in cells[1:]] == pytest.approx(
            [100 * p for p in layer], abs=0.051
        )
    assert "group 3 (trial 1)" in view.text("#lens-title")


def test_dots_and_means_follow_the_slider(view, explained) -> None:
    data = explained[1].data
    for trials in (3, 1, 2):
        view.page.focus("#step")
        view.page.fill("#step", str(trials))
        assert view.text("#stepname") == f"{trials} of 3"
        assert view.page.locator("#dots circle[data-dot]").count() == 5 * trials
        means = view.page.eval_on_selector_all(
            "#dots > svg > path.mean", "all => all.map(one => one.getAttribute('d'))"
        )
        centres = [float(re.match(r"M([\d.]+) ", path)[1]) for path in means]
        low, high = view.page.eval_on_selector(
            "#dots line.grid", "one => ['x1', 'x2'].map(end => Number(one.getAttribute(end)))"
        )
        scores = data["self_ensemble"]["running"][trials - 1]
        assert centres == pytest.approx([low + p * (high - low) for p in scores], abs=0.01)


def test_a_dot_shows_its_label_and_the_other_choices_of_its_group(view, explained) -> None:
    data = explained[1].data
    view.page.focus("#dots")
    for _ in range(4):
        view.page.keyboard.press("ArrowRight")
    dot = view.page.evaluate("dots[state.dot]")
    group = data["groups"][dot["group"]]
    sentence = view.text("#dot")
    assert f"under label {'AB'[dot['place']]}" in sentence
    for choice in group["choices"]:
        assert data["choices"][choice] in sentence
    assert f"{100 * group['probabilities'][dot['place']]:.1f}%" in sentence
    assert f"(trial {group['trial'] + 1})" in sentence


def test_the_page_shows_the_table_of_answers_in_its_data(view, explained) -> None:
    data = explained[1].data
    ensemble, others = data["self_ensemble"], data["others"]
    columns = [ensemble["running"][-1], ensemble["errors"][-1], ensemble["probabilities"]]
    columns += [others["standard"]["probabilities"], others["cyclic"]["probabilities"]]
    for number_, cells in enumerate(view.rows("#answer")):
        assert cells[0] == data["choices"][number_]
        assert [float(cell.rstrip("%")) for cell in cells[1:]] == pytest.approx(
            [100 * column[number_] for column in columns], abs=0.051
        )


def test_dots_and_means_are_also_tables(view, explained) -> None:
    data = explained[1].data
    dots = [(data["choices"][c], g["trial"], p) for g in data["groups"]
            for c, p in zip(g["choices"], g["probabilities"], strict=True)]  # fmt: skip
    rows = [(row[0], int(row[1]) - 1, row[4]) for row in view.open_table("#dottable")]
    assert sorted(rows) == sorted((c, t, f"{100 * p:.1f}%") for c, t, p in dots)
    for cells, scores in zip(
        view.open_table("#formingtable"), data["self_ensemble"]["running"], strict=True
    ):
        shown = [float(cell.partition("%")[0]) for cell in cells[1:]]
        assert shown == pytest.approx([100 * p for p in scores], abs=0.051)


def test_a_trials_partition_is_written_out(view, explained) -> None:
    data = explained[1].data
    view.page.click("#trials tbody tr:nth-child(2) button >> nth=0")
    groups = [g for g in data["groups"] if g["trial"] == 1]
    shown = view.page.locator("#partition li").all_inner_texts()
    assert shown == [", ".join(data["choices"][c] for c in g["choices"]) for g in groups]


def test_the_table_of_tokens_has_every_token(view, explained) -> None:
    packed = explained[1].data["packed"]
    view.page.select_option("#shown", "3")
    rows = view.open_table("#tokentable")
    assert len(rows) == len(packed["texts"])
    assert [int(row[3]) for row in rows] == packed["positions"]
    assert [int(row[4]) for row in rows] == [p + 1 for p in packed["positions"]]
