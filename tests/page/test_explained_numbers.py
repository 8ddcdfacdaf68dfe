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
from tests.support.browser import MARKS

pytestmark = MARKS


def test_the_switches_give_the_masks_and_positions_of_the_library(view, explained, bird) -> None:
    """Every combination, for every token."""
    lm, _ = explained
    plan = SelfEnsemble(2, 3).plan(lm, bird, 4)
    view.page.select_option("#shown", "3")
    for merge, mask, restart, window in product(
        (False, True), (True, False), (True, False), (None, 16)
    ):
        layout = pack(plan.prefix, plan.branches, tree=merge)
        T = len(layout.tokens)
        expected = layout.mask if mask else causal_mask(T)
        positions = layout.positions if restart else torch.arange(T)
        if window:
            expected = expected & (positions[:, None] < positions[None] + window)
        # And what is drawn is that.
        columns, shown, drawn = view.page.evaluate(
            """(switches) => {
              const form = $("switches");
              for (const [name, value] of switches) form.elements[name].value = value;
              form.dispatchEvent(new Event("change"));
              const pen = $("mask").getContext("2d"), T = tokens.length;
              const { data } = pen.getImageData(0, 0, T * cell, T * cell);
              return [tokens.map((_, row) => sees(row)), tokens.map((_, row) => position(row)),
                tokens.map((_, i) => tokens.reduce((n, _, j) =>
                  n + (data[4 * (i * cell * T * cell + j * cell) + 3] > 0), 0))];
            }""",
            [
                ["layout", "tree" if merge else "packed"],
                ["mask", "on" if mask else "off"],
                ["positions", "restart" if restart else "run"],
                ["window", str(window or 0)],
            ],
        )
        assert columns == [row.nonzero().flatten().tolist() for row in expected]
        assert shown == positions.tolist()
        assert drawn == expected.sum(dim=1).tolist()


SWITCHES = {
    "without_mask": ("mask", "off"),
    "without_positions": ("positions", "run"),
    "without_both": ("mask", "off"),  # after the switch before it
}


def test_every_number_is_that_of_the_run_that_the_switches_ask_for(view, explained) -> None:
    """Answers, readouts, dots, means and attention; and back."""
    data, g, L = explained[1].data, 1, explained[1].data["layers"]
    view.page.click(f"#trials button[data-group='{g}'] >> nth=0")
    for details in ("#lenstable", "#attentiontable", "#dottable"):
        view.open_table(details)
    for name, (switch, value) in SWITCHES.items():
        view.page.check(f"input[name={switch}][value={value}]")
        run = data["ablations"][name]
        own = [*run["probabilities"][g], run["nulls"][g]]
        assert [row[2] for row in view.rows("#said")] == [f"{100 * p:.1f}%" for p in own]
        assert view.rows("#lenstable")[-1][1:] == [f"{100 * p:.1f}%" for p in run["lens"][g][-1]]
        ensemble = run["self_ensemble"]
        assert columns_of_answer(view) == shown_answer(data, ensemble)
        dots = sorted(row[4] for row in view.rows("#dottable"))
        assert dots == sorted(f"{100 * p:.1f}%" for group in run["probabilities"] for p in group)
        told = data["choices"][ensemble["prediction"]]
        assert told in view.text("#consequence")
        at = data["packed"]["ends"][g]
        assert view.rows("#attentiontable") == rows_of_attention(data, name, at, L)
        assert view.page.locator(".run:visible").count() == 3
        if name == "without_positions":
            view.page.click("#run4 button")  # back to the paper's packing
            assert view.page.locator(".run:visible").count() == 0
            assert columns_of_answer(view) == shown_answer(data, data["self_ensemble"])
            view.page.check("input[name=positions][value=run]")
        elif name == "without_mask":
            assert "Tokens of other groups get" in view.text("#most")
            view.page.check("input[name=mask][value=on]")


def columns_of_answer(view) -> tuple[str, dict[str, list[str]]]:
    """The choice on top, and each one's score, standard error and share."""
    rows = view.rows("#answer")
    return rows[0][0], {row[0]: row[1:4] for row in rows}


def shown_answer(data, ensemble) -> tuple[str, dict[str, list[str]]]:
    columns = [ensemble["running"][-1], ensemble["errors"][-1], ensemble["probabilities"]]
    rows = [[f"{100 * column[i]:.1f}%" for column in columns] for i in range(len(columns[0]))]
    best = data["choices"][ensemble["prediction"]]
    return best, dict(zip(data["choices"], rows, strict=True))


def rows_of_attention(data, name: str, at: int, layer: int) -> list[list[str]]:
    """What the table shows for a token: the mean over the heads in a layer."""
    packed, H, L = data["packed"], data["heads"], data["layers"]
    alone = name == "without_positions"
    depths = packed["positions"][: at + 1] if alone else range(at + 1)
    start = sum((depth + 1) * L * H for depth in depths[:-1])
    n = depths[-1] + 1
    flat = data["ablations"][name]["attention"][start : start + n * L * H] / 255
    weights = flat.reshape(L, H, n)[layer - 1].mean(axis=0)
    rows, row = [], at
    while row >= 0:
        rows.insert(0, row)
        row = packed["parents"][row] if alone else row - 1
    texts = [packed["texts"][row].replace("\n", "⏎").strip() for row in rows]
    return [
        [str(row), text, f"{100 * p:.1f}%"]
        for row, text, p in zip(rows, texts, weights, strict=True)
    ]


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
    view.open_table("#equalitytable")
    for row in (5, data["packed"]["ends"][1]):
        view.page.hover(f"#t{row}")
        shown = view.rows("#equalitytable")
        assert len(shown) == data["layers"] + 1
        for layer, cells in enumerate(shown):
            for cell, run in zip(cells[1:], data["equality"], strict=True):
                value = float(data["equality"][run][row, layer])
                assert cell == "not computed" if np.isnan(value) else number(cell) == value
    strips = view.page.eval_on_selector_all(
        "#strips canvas", "all => all.map(c => [c.width, c.height])"
    )
    assert strips == [[len(data["packed"]["texts"]), 4]] * 5


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
    view.open_table("#attentiontable")
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
    for cells, layer in zip(view.open_table("#lenstable"), data["groups"][2]["lens"], strict=True):
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
        centres = [float(re.match(r"M([\d.]+) ", path)[1]) for path in means]  # choice by choice
        low, high = view.page.eval_on_selector(
            "#dots line.grid", "one => ['x1', 'x2'].map(end => Number(one.getAttribute(end)))"
        )
        scores = data["self_ensemble"]["running"][trials - 1]
        assert centres == pytest.approx([low + p * (high - low) for p in scores], abs=0.01)


def test_the_page_shows_the_table_of_answers_in_its_data(view, explained) -> None:
    data = explained[1].data
    ensemble, others = data["self_ensemble"], data["others"]
    columns = [ensemble["running"][-1], ensemble["errors"][-1], ensemble["probabilities"]]
    columns += [others["standard"]["probabilities"], others["cyclic"]["probabilities"]]
    rows = view.rows("#answer")
    scores = ensemble["running"][-1]
    order = sorted(range(5), key=lambda choice: -scores[choice])
    for number_, cells in zip(order, rows, strict=True):  # the highest score first
        assert cells[0] == data["choices"][number_]
        assert [float(cell.rstrip("%")) for cell in cells[1:]] == pytest.approx(
            [100 * column[number_] for column in columns], abs=0.051
        )
