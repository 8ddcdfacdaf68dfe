"""The scenes Leak and Your own mask in a browser."""

import re
from urllib.parse import quote

from tests.lab.support.browser import HOSTILE, MARKS, View

pytestmark = MARKS


class Mask:
    """The mask of the scene on the screen: its T tokens, and the tokens of each segment."""

    def __init__(self, view: View) -> None:
        self.view, self.canvas = view, view.page.locator("#scene-leak .cells canvas")
        self.canvas.scroll_into_view_if_needed()
        self.T = int(self.canvas.get_attribute("data-tokens"))
        parts = "spans => spans.map(one => [one.style.left, one.style.width].map(parseFloat))"
        edges = view.page.eval_on_selector_all("#scene-leak .edge.top span", parts)
        self.segments = [
            range(*(round(x * self.T / 100) for x in (left, left + width))) for left, width in edges
        ]

    def words(self) -> str:
        return str(self.view.text("#scene-leak .readout"))

    def at(self, t: int, u: int) -> tuple[float, float]:
        self.canvas.scroll_into_view_if_needed()
        box = self.canvas.bounding_box()
        side = box["width"] / self.T
        return box["x"] + (u + 0.5) * side, box["y"] + (t + 0.5) * side

    def middle(self, g: int) -> int:
        """A token in the middle of a group, counted from 1; 0 is the question."""
        return self.segments[g][len(self.segments[g]) // 2]


def leaks(view: View) -> str:
    view.settle()
    return str(view.text("#scene-leak .verdict"))


SHORT = "leak?K=4&m=2"
WORDS = "#scene-leak .side .leak-words button"


def test_the_scene_opens_with_the_right_choice_as_the_other_word(scene: View) -> None:
    """It changes most: group 2 sees the answer in group 1."""
    scene.go("leak")
    assert scene.text(".leak-prompt mark") == "Ottawa"
    words = [one.inner_text() for one in scene.page.locator(WORDS).all()]
    assert words == ["Tokyo", "Ottawa", "Kingston", "Baghdad"]
    changes = {}
    for word in words[1:]:
        scene.page.click(f"{WORDS}:text-is('{word}')")
        changes[word] = float(leaks(scene))
    assert changes["Ottawa"] > 0.5
    assert max(changes, key=changes.__getitem__) == "Ottawa"


def test_the_leak_meter_falls_to_exactly_0_when_group_2_cannot_see_group_1(scene: View) -> None:
    scene.go(SHORT)
    scene.page.click(f"{WORDS} >> nth=0")
    assert leaks(scene).startswith("Choose another word than ")
    scene.page.click(f"{WORDS} >> nth=1")
    assert 0 < float(leaks(scene)) <= 1
    mask = Mask(scene)
    scene.page.mouse.click(*mask.at(mask.middle(2), mask.middle(1)))
    assert leaks(scene) == "exactly 0"
    assert "Group 2's answer is that of a run of its own, exactly." in scene.text("#leak-apart")
    assert scene.page.get_attribute("text=group mask", "aria-pressed") == "true"
    assert scene.page.get_attribute("#scene-leak .leak-meter", "aria-valuenow") == "0"


def test_a_longer_word_leaks_through_positions_that_run_on(scene: View) -> None:
    scene.go(f"{SHORT}&cells=groups&positions=runOn&word=Paris+by+night+and+day")
    assert float(leaks(scene)) > 0
    said = "No group sees group 1, but positions run on, and the word has [0-9]+ more tokens"
    assert re.search(said, scene.text("#scene-leak"))
    scene.page.check("#scene-leak input[value=reset]")
    assert leaks(scene) == "exactly 0"


def test_one_of_the_four_ways_equals_the_separate_run_live(scene: View) -> None:
    scene.go(SHORT)
    said = "1 of the 4 equals the separate run, exactly. Measured just now, in this browser."
    assert said in scene.text("#scene-leak")
    assert scene.page.locator(".leak-case.equal").count() == 1
    assert scene.page.locator(".leak-case[aria-pressed=true]").inner_text() != "equal"
    scene.page.click(".leak-case.equal")
    scene.settle()
    assert scene.page.locator(".leak-case.equal[aria-pressed=true]").count() == 1
    assert scene.page.get_attribute("text=group mask", "aria-pressed") == "true"
    assert scene.page.is_checked("#scene-leak input[value=reset]")


def test_the_mask_is_painted_with_the_keyboard(scene: View) -> None:
    scene.go(SHORT)
    mask = Mask(scene)
    mask.canvas.focus()
    corner = ["Shift+ArrowUp", "Shift+ArrowLeft"] * 4
    for key in (*corner, "Shift+ArrowDown", "Shift+ArrowDown", "Shift+ArrowRight", "ArrowRight"):
        mask.canvas.press(key)
    words = mask.words()
    assert re.fullmatch(
        r"“.+”, group 2, position \d+, may attend to “.+”, group 1, position \d+", words
    )
    mask.canvas.press("Space")
    scene.settle()
    assert mask.words() == words.replace("may", "may not")
    assert scene.page.get_attribute("text=group mask", "aria-pressed") == "true"


def test_touch_paints_and_the_page_fits_a_phone(phone: View) -> None:
    phone.go(SHORT)
    assert phone.page.evaluate("document.documentElement.scrollWidth") == 390
    mask = Mask(phone)
    phone.page.touchscreen.tap(*mask.at(mask.middle(2), mask.middle(1)))
    phone.settle()
    assert phone.page.get_attribute("text=group mask", "aria-pressed") == "true"
    phone.go("own")
    assert phone.page.evaluate("document.documentElement.scrollWidth") == 390


RUN_ON = "positions: token 4 of document 2 has the position 4, not 0"
OWN = {
    "no mask": (
        "mask: token 4 of document 2 may attend to token 0 of document 1",
        "document 2 by",
    ),
    "no mask, positions run on": (RUN_ON, "document 2 by"),
    "mask, but positions run on": (
        RUN_ON,
        "Change document 1, document 2, document 3: nothing else changes",
    ),
    "borders off by one": (
        "mask: token 3 of document 1 may not attend to token 0 of document 1",
        "a leak",
    ),
    "padding is seen": (
        "mask: token 2 of document 1 may attend to token 0, which is padding",
        "Change padding: it changes document 1 by",
    ),
    "right: documents": (
        "equal to the separate runs",
        "Equal to a run of its own, exactly: document 1, document 2, document 3.",
    ),
    "right: a trunk with two branches": (
        "equal to the separate runs",
        "as it should",
    ),
}


def test_each_example_of_your_own_mask_says_what_is_wrong_and_what_leaks(scene: View) -> None:
    scene.go("own")
    assert [one.inner_text() for one in scene.page.locator(".own-examples button").all()] == list(
        OWN
    )
    for name, (words, ran) in OWN.items():
        scene.page.click(f".own-examples button:text-is('{name}')")
        scene.settle()
        text = scene.text("#scene-own .own-stage")
        assert words in text, name
        assert ran in text, name
        right = name.startswith("right")
        assert ("NOT equal" in text) is not right
        # A shift of whole documents changes nothing but rounding, with rotary positions.
        shifted = name == "mask, but positions run on"
        assert (", a leak" in text) is not (right or shifted)
        assert ("apart from a run of its own" in text) is not (right or shifted)
        assert ("equal to a run of its own up to rounding" in text) is shifted


def test_what_is_no_row_gets_one_line_and_the_next_row_is_read(scene: View) -> None:
    scene.go("own")
    for text, line in (
        ("documents: 4 4\nposition_ids: 0 1", "documents: hold 8 tokens, but the row has 2"),
        (HOSTILE, "the first line has no name"),
    ):
        scene.page.fill("#scene-own textarea", text)
        scene.page.wait_for_selector(f"#own-fault:has-text('{line}')")
        assert not scene.page.is_visible("#scene-own .own-stage")
    assert scene.page.evaluate("typeof hacked") == "undefined"
    scene.page.fill("#scene-own textarea", "documents: 3 3\nposition_ids: 0 1 2 0 1 2")
    scene.page.wait_for_selector("#scene-own .own-stage", state="visible")
    assert scene.text("#own-fault") == ""


def test_a_row_of_the_zoo_opens_by_its_address(scene: View) -> None:
    """As docs/zoo.md links to it."""
    scene.go("own?row=%7B%22documents%22:%5B3,3%5D%7D")
    assert "6 tokens, 2 separate prompts: NOT equal" in scene.text("#scene-own .own-stage")
    assert scene.page.input_value("#scene-own textarea") == '{"documents":[3,3]}'


def test_a_word_that_is_hostile_stays_text(scene: View) -> None:
    scene.go(f"leak?K=4&m=2&word={quote(HOSTILE)}&cells={quote(HOSTILE)}")
    assert scene.page.evaluate("typeof hacked") == "undefined"
    assert scene.page.locator("#scene-leak img, #scene-leak script").count() == 0
    assert "<" in scene.text(".leak-prompt mark")
