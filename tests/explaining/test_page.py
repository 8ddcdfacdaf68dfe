"""The page in a real browser: it loads, fits, prints, follows mouse, finger and keys; text stays
text."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from minise import LanguageModel, Question
from minise.explaining.page import Page, explain
from tests.support.browser import MARKS
from tests.support.browser import browser as browser
from tests.support.browser import explained as explained
from tests.support.browser import show as show
from tests.support.browser import view as view
from tests.support.contrast import contrast, from_hex
from tests.support.explained import HOSTILE

pytestmark = MARKS

LOOKS = {
    "wide": {"viewport": {"width": 1400, "height": 900}},
    "dark": {"color_scheme": "dark"},
    "400 pixels": {"viewport": {"width": 400, "height": 800}, "device_scale_factor": 2},
    "projector": {"viewport": {"width": 1920, "height": 1080}},
    "phone": {"viewport": {"width": 400, "height": 800}, "has_touch": True, "is_mobile": True},
    "little motion": {"reduced_motion": "reduce"},
}


@pytest.mark.parametrize("look", LOOKS)
def test_the_page_loads_without_errors_and_fits_the_window(show, explained, look: str) -> None:
    """No console message, no request (the fixture holds that), and nothing beyond the sides."""
    view = show(explained[1].html, **LOOKS[look])
    page = view.page
    assert page.title() == "Which is a bird? - minise explain"
    width = page.evaluate("document.documentElement.clientWidth")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate("document.querySelectorAll('.chart > svg').length") == 4


def test_pointing_at_a_token_highlights_what_it_attends_to(view, explained) -> None:
    data = explained[1].data["packed"]
    for row in (0, 17, data["ends"][0], data["ends"][1] - 3, data["ends"][2]):
        path, at = [], row
        while at >= 0:
            path, at = [at, *path], data["parents"][at]
        view.page.hover(f"#t{row}")
        assert view.lit() == path
        assert view.page.locator("#sequence .at").get_attribute("id") == f"t{row}"
        pointed = view.text("#pointed")
        where = f"index {row}, position {data['positions'][row]}, sees {len(path)} token"
        assert where in pointed
        # The cells of the mask that are in the colour of what is lit.
        cells = view.page.evaluate(
            """row => {
              const pen = $("lit").getContext("2d"), [r, g, b] = pen.getImageData(0, 0, 1, 1).data;
              const probe = document.createElement("canvas").getContext("2d");
              probe.fillStyle = css("--accent"); probe.fillRect(0, 0, 1, 1);
              const want = probe.getImageData(0, 0, 1, 1).data.slice(0, 3).join();
              return tokens.map((_, column) => pen.getImageData(
                column * cell + cell / 2 - 0.5, row * cell + cell / 2 - 0.5, 1, 1
              ).data.slice(0, 3).join() === want);
            }""",
            row,
        )
        assert np.flatnonzero(cells).tolist() == path


def test_pointing_at_the_mask_selects_the_token_of_its_row(view, explained) -> None:
    T = explained[1].data["packed"]["ends"][2] + 1  # of the first trial
    view.page.locator("#lit").scroll_into_view_if_needed()
    box = view.page.locator("#lit").bounding_box()
    for row in (3, T // 2, T - 1):
        view.page.mouse.move(box["x"] + 5, box["y"] + (row + 0.5) * box["height"] / T)
        assert f"index {row}," in view.text("#pointed")


def test_the_cell_under_the_pointer_is_told(view, explained) -> None:
    data = explained[1].data["packed"]
    T, start = data["ends"][2] + 1, data["ends"][0] + 1  # of the first trial; of its second group

    def told(row: int, column: int) -> str:
        view.page.locator("#lit").scroll_into_view_if_needed()
        box = view.page.locator("#lit").bounding_box()
        x, y = (box[side] + (n + 0.5) * box["width"] / T for side, n in (("x", column), ("y", row)))
        view.page.mouse.move(x, y)
        return view.text("#cell")

    row, column = start + 3, start - 3
    assert told(row, column).startswith(f"Token {row} “{data['texts'][row]}” of group 2 may not ")
    assert told(row, column).endswith(" of group 1: it is of another group.")
    assert f"of group 2 may attend to token 3 “{data['texts'][3]}” of the question." in told(row, 3)
    assert told(column, row).endswith(": it comes later.")
    view.page.check("input[name=mask][value=off]")
    assert told(row, column).endswith(" of group 1: the mask is off.")
    view.page.select_option("#window", "8")
    assert told(start + 9, 0).endswith("positions back, and the window is 8.")
    view.page.focus("#lit")
    before = view.page.evaluate("state.cell")
    for key in ("ArrowUp", "ArrowRight"):
        view.page.keyboard.press(key)
    assert view.page.evaluate("state.cell") == [before[0] - 1, before[1] + 1]
    assert view.text("#cell").startswith(f"Token {before[0] - 1} ")


def test_the_masks_edges_name_the_question_the_groups_and_the_tokens(view, explained) -> None:
    texts = view.page.locator("#edges text.owner").all_text_contents()
    for name in ("question", "group 1", "group 2"):
        assert texts.count(name) == 2  # above and at the left
    ticks = view.page.locator("#edges text.tick").all_text_contents()
    assert ticks[:6] == [
        "0",
        "0",
        ticks[2],
        ticks[2],
        str(2 * int(ticks[2])),
        str(2 * int(ticks[2])),
    ]


def test_the_ruler_shows_where_positions_restart_and_that_they_run_on(view, explained) -> None:
    packed = explained[1].data["packed"]
    first, second = packed["ends"][0] + 1, packed["ends"][1]
    ids = packed["positions"]
    restarts, runs_on = (ids[first], ids[second]), (first, second)
    rises = "one => [...one.getAttribute('d').matchAll(/[ML][\\d.]+ ([\\d.]+)/g)].map(m => +m[1])"
    for switch, shown, hidden in (("restart", restarts, runs_on), ("run", runs_on, restarts)):
        view.page.check(f"input[name=positions][value={switch}]")
        texts = view.page.locator("#edges text").all_text_contents()
        assert "\u2013".join(map(str, shown)) in texts
        assert "\u2013".join(map(str, hidden)) not in texts
        slopes = view.page.eval_on_selector_all("#edges .ids", f"all => all.map({rises})")
        # A saw falls back where a group begins. (y grows downwards.)
        assert (slopes[2][0] > slopes[1][1]) == (switch == "restart")
        name = view.page.locator("#sequence .name").nth(2).inner_text()
        assert name.endswith(f"positions {shown[0]} to {shown[1]}")


def test_a_click_keeps_a_token_selected_until_escape(view) -> None:
    view.page.click("#t9")
    view.page.hover("#t12")
    assert "index 9," in view.text("#pointed")
    assert "Held" in view.text("#pointed")
    view.page.keyboard.press("Escape")
    view.page.hover("#t14")
    assert "index 14," in view.text("#pointed")


def test_the_arrow_keys_move_the_pointed_token(view, explained) -> None:
    ends = explained[1].data["packed"]["ends"]
    view.page.focus("#sequence")
    view.page.keyboard.press("Home")
    assert "index 0," in view.text("#pointed")
    for key, index in (("ArrowRight", 1), ("ArrowRight", 2), ("ArrowLeft", 1), ("End", ends[2])):
        view.page.keyboard.press(key)
        assert f"index {index}," in view.text("#pointed")
    view.page.keyboard.press("Home")
    view.page.keyboard.press("ArrowDown")  # from the question to the end of the first group
    assert f"index {ends[0]}," in view.text("#pointed")
    view.page.keyboard.press("End")
    view.page.keyboard.press("ArrowUp")  # to the end of the group before
    assert f"index {ends[1]}," in view.text("#pointed")
    assert "read out here" in view.text("#pointed")
    active = view.page.get_attribute("#sequence", "aria-activedescendant")
    assert active == f"t{ends[1]}"
    assert view.page.get_attribute(f"#{active}", "aria-selected") == "true"
    view.page.click("#before")
    assert f"index {ends[1] - 1}," in view.text("#pointed")


def test_every_control_is_reached_by_the_tab_key(view) -> None:
    controls = {"trials", "before", "after", "sequence", "window", "shown", "layer", "head", "step"}
    controls |= {"dots", "lit"}
    reached = set()
    for _ in range(50):
        view.page.keyboard.press("Tab")
        reached.add(view.page.evaluate("document.activeElement.id"))
        reached.add(view.page.evaluate("document.activeElement.name || ''"))
    assert controls | {"layout", "mask", "positions"} <= reached


def test_touch_selects_a_token(show, explained) -> None:
    view = show(explained[1].html, **LOOKS["phone"])
    view.page.tap("#t11")
    assert "index 11," in view.text("#pointed")
    view.page.tap("#after")
    assert "index 12," in view.text("#pointed")
    view.page.tap("#trials tbody tr:nth-child(2) button >> nth=0")
    assert "trial 2" in view.text("#prompt-title")


def test_hostile_text_stays_text(show, explained, tmp_path) -> None:
    lm, _ = explained
    named = LanguageModel(f"<b>{HOSTILE}</b>", lm.config, lm.decoder, lm.tokenizer)
    page = explain(named, Question(HOSTILE, [HOSTILE, f"b{HOSTILE}", "c"]), group_size=2, trials=1)
    view = show(page.html)
    assert view.page.evaluate("typeof hacked") == "undefined"
    assert view.page.locator("img, main b b, main script").count() == 0
    assert view.page.text_content("h1") == HOSTILE.replace("\x07", "\x07")
    assert view.page.text_content("#prompt").startswith(HOSTILE)
    assert view.page.text_content(".choices li").strip() == HOSTILE.strip()
    assert view.open_table("#tokentable")
    view.page.focus("#dots")
    view.page.keyboard.press("ArrowRight")
    assert view.page.evaluate("typeof hacked") == "undefined"


def test_a_mask_of_2000_tokens_is_drawn(show, explained, capsys) -> None:
    """How long it takes, with the tokens beside it, is printed (pytest -s), not judged."""
    lm, _ = explained
    question = Question("Which is a bird?", ["wren", "oak", "trout", "zinc"] * 2)
    page = explain(lm, question, trials=30, detail="full")
    T = len(page.data["packed"]["texts"])
    assert 1800 < T <= 2000
    view = show(page.html, viewport={"width": 1400, "height": 900})
    view.page.select_option("#shown", str(page.data["groups"][page.data["shown"] - 1]["trial"] + 1))
    for mask in ("on", "off"):
        view.page.check(f"input[name=mask][value={mask}]")
        result = view.page.evaluate(
            """() => {
              const began = performance.now();
              drawPart2();
              const pen = $("mask").getContext("2d"), size = $("mask").width;
              const { data } = pen.getImageData(0, 0, size, size); // waits for the drawing
              const took = performance.now() - began;
              let drawn = 0;
              for (let i = 3; i < data.length; i += 4) drawn += data[i] > 0;
              return [took, drawn / cell ** 2];
            }"""
        )
        cells = sum(p + 1 for p in page.data["packed"]["positions"])
        assert result[1] == (cells if mask == "on" else T * (T + 1) // 2)
        print(f"\n{T} tokens, mask {mask}: drawn in {result[0] / 1000:.2f} s")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_colours_have_enough_contrast(show, explained, scheme: str) -> None:
    """A contrast of at least 4.5 to 1 against the paper (WCAG AA) for whatever text is coloured."""
    view = show(explained[1].html, color_scheme=scheme)
    names = ["--ink", "--soft", "--accent", "--shared", *(f"--g{i}" for i in range(7))]
    paper, *colours = view.page.evaluate("names => names.map(css)", ["--paper", *names])
    for name, colour in zip(names, colours, strict=True):
        assert contrast(from_hex(colour), from_hex(paper)) >= 4.5, name


def test_the_page_can_be_printed(show, explained) -> None:
    view = show(explained[1].html, color_scheme="dark")
    assert view.page.pdf(format="A4").startswith(b"%PDF")
    view.page.emulate_media(media="print")
    assert not view.page.is_visible("#switches")
    assert view.page.is_visible("#sequence")
    paper = view.page.evaluate("getComputedStyle(document.documentElement).backgroundColor")
    assert paper == "rgb(253, 253, 251)"  # light, though the screen is dark


def test_a_frame_in_a_notebook_shows_the_page(show, explained) -> None:
    frame = explained[1]._repr_html_()
    view = show(f"<!DOCTYPE html><html data-ready=yes><title>notebook</title>{frame}")
    inner = view.page.frame_locator("iframe")
    inner.locator("html[data-ready=yes]").wait_for(state="attached")
    assert inner.locator("h1").inner_text() == "Which is a bird?"


GONE: dict[str, Any] = {
    "dense": {"equality": ["tree"], "engine": "cache"},
    "everything inside": {"equality": [], "heads": 0, "attention": None, "engine": "separate"},
}


@pytest.mark.parametrize("width", [400, 1400])
@pytest.mark.parametrize("gone", GONE)
def test_parts_that_a_model_does_not_provide_are_left_out_with_a_note(
    show, explained, gone: str, width: int
) -> None:
    """As for a model of another library. Nothing is empty, and the scripts do not mind."""
    data = {**explained[1].data, **GONE[gone], "left_out": ["It is a secret."], "ablations": {}}
    for part in ("equality", "bitwise"):
        data[part] = {run: explained[1].data[part][run] for run in GONE[gone]["equality"]}
    if not data["heads"]:
        data["groups"] = [{**group, "lens": []} for group in data["groups"]]
    view = show(Page(data).html, viewport={"width": width, "height": 800})
    view.page.click("#after")
    view.page.click("#trials button[data-group='2'] >> nth=0")
    view.page.focus("#dots")
    view.page.keyboard.press("ArrowRight")
    view.page.check("input[name=mask][value=off]")
    assert "The model was not run so" in view.text("#consequence")
    assert view.text("#run1").startswith("Not run with mask off: these are the numbers of the ")
    assert view.page.evaluate("document.documentElement.scrollWidth") <= width
    for part in view.page.locator("main figure, main table, #bitwise, #attended").all():
        drawn = part.inner_text().strip() or part.locator("canvas, svg").count()
        assert drawn or not part.is_visible()
    assert "It is a secret." in view.text("#left-out")
    text = view.text("main")
    assert text.count("Left out here; the end of the page says why.") == (0 if data["heads"] else 3)
    assert "This model was not run over this sequence" in text
    if data["heads"]:
        summary = "library's cache: equal bit for bit. Left out: dense engine, without the mask, "
        assert view.text("#bitwise").startswith(summary)
        assert view.page.locator("#strips canvas").count() == 1
        assert view.page.locator("#equality path.line").count() >= 1
