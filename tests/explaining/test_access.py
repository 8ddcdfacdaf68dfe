"""The page for every reader: by keyboard, finger or screen reader, in any script, and with many
choices."""

from __future__ import annotations

import pytest

from minise import Question
from minise.explaining.page import Page, explain
from tests.support.browser import MARKS
from tests.support.browser import browser as browser
from tests.support.browser import explained as explained
from tests.support.browser import foreign as foreign
from tests.support.browser import show as show
from tests.support.browser import view as view

WIDE = {"viewport": {"width": 1400, "height": 900}}
PHONE = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True}
pytestmark = MARKS


@pytest.fixture(scope="module")
def twenty(explained) -> Page:
    choices = [f"thing {number}" for number in range(20)]
    return explain(explained[0], Question("Which?", choices, answer=7), group_size=10, trials=2)


# Keyboard and screen readers.

SCROLLING = """() => {
  for (const one of document.querySelectorAll("details")) one.open = true;
  for (const id of Object.keys(TABLES)) fill(id);
  return [...document.querySelectorAll("main *")].filter((one) =>
    ["auto", "scroll"].includes(getComputedStyle(one).overflowX)
    && (one.scrollHeight > one.clientHeight || one.scrollWidth > one.clientWidth)
  ).map((one) => [one.tabIndex, one.role, one.ariaLabel || one.getAttribute("aria-labelledby")]);
}"""


@pytest.mark.parametrize("look", [WIDE, PHONE])
def test_whatever_scrolls_is_reached_by_keyboard_and_has_a_name(show, twenty, look) -> None:
    regions = show(twenty.html, **look).page.evaluate(SCROLLING)
    assert len(regions) > 4
    for index, role, name in regions:
        assert index == 0
        assert role in ("region", "listbox")
        assert name


def test_every_token_option_has_a_name(show, foreign) -> None:
    """Also a space, and a byte of a character."""
    view = show(foreign.html)
    names = view.page.eval_on_selector_all(
        "[role=option]", "all => all.map(one => one.ariaLabel || one.textContent)"
    )
    assert len(names) > 100
    assert all(name.strip() for name in names)
    assert "space" in names
    assert any(name.startswith("part 2 of ") for name in names)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_token_stays_readable_however_dark_it_is(show, explained, scheme: str) -> None:
    """A contrast of at least 4.5 to 1 (WCAG AA) between a token and its tint in part 4."""
    view = show(explained[1].html, color_scheme=scheme)
    worst = view.page.evaluate(
        """() => {
          const number = (text) => text.match(/[\\d.]+/g).map(Number);
          const light = (rgb) => rgb.map((c) => c / 255).map((c) =>
            c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4
          ).reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
          const under = number(getComputedStyle($("attended")).backgroundColor);
          let worst = 99;
          for (const strength of [0, 0.25, 0.49, 0.5, 0.51, 0.75, 1]) {
            read = { rows: [0, 1], found: [strength, 1] };
            drawRead([0, 1], read.found, data.packed);
            const style = getComputedStyle($("attended").querySelector(".t"));
            const [r, g, b, a = 1] = number(style.backgroundColor);
            const back = light([r, g, b].map((c, i) => a * c + (1 - a) * under[i]));
            const [low, high] = [back, light(number(style.color))].sort((x, y) => x - y);
            worst = Math.min(worst, (high + 0.05) / (low + 0.05));
          }
          return worst;
        }"""
    )
    assert worst >= 4.5


@pytest.mark.parametrize(("look", "least"), [(WIDE, 24), (PHONE, 44)])
def test_every_target_is_large_enough(show, explained, look, least: int) -> None:
    """24 pixels (WCAG 2.2, 2.5.8); 44 for a finger. A radio button's target is its label."""
    view = show(explained[1].html, **look)
    targets = "main button, main select, main summary, main label, #sequence .t, input[type=range]"
    sizes = view.page.eval_on_selector_all(
        targets,
        "all => all.map(one => [one.outerHTML.slice(0, 80), one.getBoundingClientRect()])"
        ".filter(([_, box]) => box.width).map(([name, box]) => [name, box.width, box.height])",
    )
    assert len(sizes) > 50
    for name, width, height in sizes:
        assert min(width, height) >= least - 0.01, name


# What colours mean, and what axes say.


def test_colours_are_for_groups_alone(view) -> None:
    """Lines of choices and runs are in ink, three of them, or in grey; other marks too."""
    ink, rest = view.page.evaluate("['--ink', '--rest'].map(css)")
    colours = {tuple(int(one[i : i + 2], 16) for i in (1, 3, 5)) for one in (ink, rest)}
    used = view.page.eval_on_selector_all(
        ".chart .line, .chart .mark, .chart .mean, .chart .other",
        "all => all.map(one => getComputedStyle(one).stroke.match(/\\d+/g).map(Number))",
    )
    assert {tuple(one) for one in used} == colours
    assert view.page.locator("#forming .line.top").count() == 3
    assert view.page.locator("#forming .line.rest").count() == 2
    dashes = view.page.eval_on_selector_all(
        "#forming .line.top", "all => all.map(one => one.getAttribute('stroke-dasharray'))"
    )
    assert len(set(dashes)) == 3
    own = view.page.eval_on_selector_all(
        "circle.own", "all => all.map(one => dots[one.dataset.dot])"
    )
    assert own
    assert {dot["group"] for dot in own} == {view.page.evaluate("state.group")}


def test_axes_have_titles_and_lines_their_names(view, explained) -> None:
    titles = {
        "#equality": ["layer", "relative difference"],
        "#lens": ["layer", "probability"],
        "#forming": ["trials", "mean probability"],
        "#dots": ["probability", ""],
    }
    for chart, expected in titles.items():
        assert view.page.locator(f"{chart} .title").all_text_contents() == expected
    names = view.page.locator("#forming svg").text_content()
    assert all(choice in names for choice in explained[1].data["choices"])


# Many choices.


@pytest.mark.parametrize("look", [WIDE, PHONE])
def test_the_answer_of_twenty_choices_is_on_top(show, twenty, look) -> None:
    data = twenty.data
    view = show(twenty.html, **look)
    best = data["choices"][data["self_ensemble"]["prediction"]]
    assert view.rows("#answer")[0][0] == best
    assert view.page.locator("#dots text.strong").text_content().startswith(f"\u203a {best}")
    inner = view.page.locator("#answer").locator("..")
    assert inner.evaluate("one => one.scrollHeight <= one.clientHeight")  # no second fold
    assert "17 others" in view.page.locator("#forming svg").text_content()


def test_a_trials_twenty_choices_fit_beside_each_other(show, twenty) -> None:
    trials = show(twenty.html, **WIDE).page.locator("#trials")
    assert trials.evaluate("one => one.scrollWidth <= one.clientWidth")
    assert trials.locator("thead th").count() == 20


# Other scripts than Latin.


def test_a_character_of_several_tokens_stands_once_over_them(show, foreign) -> None:
    view = show(foreign.html)
    pieces = view.page.eval_on_selector_all(
        "#sequence .char",
        "all => all.map(one => [one.querySelector('.glyph').textContent, "
        "...[...one.querySelectorAll('.t')].map(part => part.textContent)])",
    )
    for text in ("م", "\u05d9", "👨\u200d👩\u200d👧"):
        expected = [text, *(f"{byte:02X}" for byte in text.encode())]
        assert expected in pieces
    assert "\ufffd" not in view.text("#sequence")
    assert "\ufffd" not in view.text("#attended")
    row = foreign.data["packed"]["texts"].index("م")
    view.page.hover(f"#t{row}")
    assert "Token part 2 of 2 of “\u2068م\u2069”" in view.text("#pointed")
    assert view.open_table("#tokentable")[row][1] == "part 2 of 2 of “\u2068م\u2069”"


def test_text_from_right_to_left_is_written_so(show, foreign) -> None:
    view = show(foreign.html)
    view.page.click("#trials button[data-group='0'] >> nth=0")
    for where in ("h1", "#prompt", "#partition li >> nth=0", "#answer tbody th >> nth=0"):
        element = view.page.locator(where)
        text = element.text_content().strip()
        direction = element.evaluate("one => getComputedStyle(one).direction")
        assert direction == ("rtl" if text[0] > "\u0500" else "ltr"), where
    assert view.page.evaluate("getComputedStyle(document.body).direction") == "ltr"


# Pointing.


def test_pointing_draws_no_chart_and_no_mask_anew(view, explained) -> None:
    """Within a group the axes, the readouts and the mask stay the same elements."""
    ends = explained[1].data["packed"]["ends"]
    drawn = "['equality', 'lens', 'forming', 'dots', 'sequence', 'edges']"
    keep = f"{drawn}.map(id => $(id).firstChild)"
    view.page.hover(f"#t{ends[1] - 4}")
    view.page.evaluate(f"window.kept = {keep}; window.drawn = 0")
    view.page.evaluate(
        "const old = drawMask; drawMask = () => { drawn += 1; old(); }; 0"  # each call is counted
    )
    view.page.hover(f"#t{ends[1] - 9}")
    assert f"index {ends[1] - 9}," in view.text("#pointed")
    assert view.page.evaluate(f"{drawn}.filter((id, i) => $(id).firstChild !== kept[i])") == []
    assert view.page.evaluate("drawn") == 0
