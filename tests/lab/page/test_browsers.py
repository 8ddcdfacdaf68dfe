"""The page in two browsers, and what axe-core, the usual checker of accessibility, says of it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.lab.page.test_scenes import SCENES
from tests.lab.support.browser import FIREFOX, MARKS, View, open_page

pytestmark = MARKS
TEXT = "at => document.querySelector(at).textContent"
TAGS = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]


def violations(view: View) -> list[str]:
    from axe_playwright_python.sync_playwright import Axe

    only = {"runOnly": {"type": "tag", "values": TAGS}, "resultTypes": ["violations"]}
    found = Axe().run(view.page, options=only).response["violations"]
    return [f"{one['id']}: {node['html'][:200]}" for one in found for node in one["nodes"]]


@pytest.mark.parametrize("look", ["scene light", "scene dark", "phone light"])
def test_axe_finds_no_violation_in_any_scene(request: pytest.FixtureRequest, look: str) -> None:
    """Contrast, names, roles, labels, sizes of targets, order of headings."""
    view: View = request.getfixturevalue(look.split()[0])
    view.page.emulate_media(color_scheme=look.split()[1], reduced_motion="reduce")
    for name in SCENES:
        view.go(name)
        assert violations(view) == [], name


def test_axe_is_told_what_is_wrong(scene: View) -> None:
    """The checker does look: a button without a name is found."""
    scene.page.evaluate("document.querySelector('main').append(document.createElement('button'))")
    found = violations(scene)
    scene.page.evaluate("document.querySelector('main > button').remove()")
    assert [one.partition(":")[0] for one in found] == ["button-name"]


@pytest.mark.skipif(FIREFOX is None, reason="no Firefox here; on Debian: apt install firefox-esr")
def test_firefox_shows_what_chromium_shows(
    start: dict[str, Callable[[], Any]], browser: Any, live_file: Path
) -> None:
    """In each scene the same words and, to the digits shown, the same numbers; no message of the
    console; the 20 questions are answered in both."""
    views = [open_page(one, live_file, "ask") for one in (browser, start["firefox"]())]
    for name in SCENES:
        shown = []
        for view in views:
            view.go(f"{name}?K=6&N=5")
            view.until(f"!({TEXT})('#scene-{name}').includes('so far')")
            shown.append(view.page.evaluate(TEXT, f"#scene-{name}").split())
        assert shown[0] == shown[1], name
        assert len(shown[0]) > 20, name
    for view in views:
        view.check(live_file)
        view.page.context.close()
