"""The live page of the shipped tiny-llama in headless Chromium: `open_scene("split?m=2")`. At the
end no page may have complained or asked for anything."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from minise.live.page import live_page
from tests.support.browser import View
from tests.support.browser import browser as browser

CHECKPOINT = Path(__file__).parents[2] / "weights" / "tiny-llama"
WIDE: dict[str, Any] = {"viewport": {"width": 1400, "height": 900}}
PHONE: dict[str, Any] = {
    "viewport": {"width": 390, "height": 844},
    "device_scale_factor": 2,
    "has_touch": True,
    "is_mobile": True,
}


class Scene(View):
    """An open live page."""

    def go(self, address: str) -> None:
        """Change the address after "#", as a reader does, and wait for the scene."""
        self.page.evaluate(
            """async at => {
              // The page writes its address a moment after a change: until then it is an old one.
              const wait = location.hash === `#${at}` ? 300 : 0;
              await new Promise((done) => setTimeout(done, wait));
              if (location.hash === `#${at}`) return;
              await new Promise((done) => {
                addEventListener("popstate", () => setTimeout(done), { once: true });
                location.hash = at;
              });
            }""",
            address,
        )
        self.settle()

    def address(self) -> str:
        """What is after "#". The page writes it a moment after a change."""
        self.page.wait_for_timeout(300)
        return str(self.page.evaluate("location.hash")).removeprefix("#")

    def drag(self, slider: str, value: int) -> None:
        """Set a slider by its label."""
        self.page.get_by_role("slider", name=slider, exact=True).fill(str(value))
        self.settle()

    def until(self, condition: str) -> None:
        """Wait until a JavaScript expression holds. (The page's policy forbids `eval`, and with it
        Playwright's own way to wait.)"""
        for _ in range(600):
            if self.page.evaluate(condition):
                return
            self.page.wait_for_timeout(50)
        raise AssertionError(f"after 30 s not yet: {condition}")

    def check(self, live_file: Path) -> None:
        """Nothing was complained of, and nothing asked for but the page itself. (Its worker is
        started from a blob, which is part of the page.)"""
        errors, loaded = [*self.errors], [*self.requests]
        self.errors.clear()
        self.requests.clear()
        assert errors == [], errors
        loaded = [url for url in loaded if not url.startswith(("data:", "blob:"))]
        assert {url.partition("#")[0] for url in loaded} <= {live_file.as_uri()}


@pytest.fixture(scope="module")
def live_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("live") / "live.html"
    path.write_text(live_page(CHECKPOINT), encoding="utf-8")
    return path


def open_page(browser: Any, live_file: Path, address: str = "ask", **options: Any) -> Scene:
    view = Scene(browser.new_context(**options).new_page())

    def told(text: str) -> None:
        if "willReadFrequently" not in text:  # how these tests read a canvas
            view.errors.append(text)

    view.page.on("console", lambda message: told(message.text))  # warnings count too
    view.page.on("pageerror", lambda error: told(str(error)))
    view.page.on("request", lambda request: view.requests.append(request.url))
    view.page.goto(f"{live_file.as_uri()}#{address}")
    view.settle()
    return view


@pytest.fixture
def open_scene(browser: Any, live_file: Path) -> Iterator[Callable[..., Scene]]:
    """A page of its own, 1400 pixels wide."""
    opened: list[Scene] = []

    def open_(address: str) -> Scene:
        opened.append(open_page(browser, live_file, address, **WIDE))
        return opened[-1]

    yield open_
    for view in opened:
        view.check(live_file)
        view.page.context.close()


@pytest.fixture(scope="module")
def shared(browser: Any, live_file: Path) -> dict[str, Scene]:
    """Two pages for all tests of a module, because to open one takes a second or two."""
    return {
        "scene": open_page(browser, live_file, reduced_motion="reduce", **WIDE),
        "phone": open_page(browser, live_file, reduced_motion="reduce", **PHONE),
    }


@pytest.fixture
def scene(shared: dict[str, Scene], live_file: Path) -> Iterator[Scene]:
    """1400 pixels wide, light, without motion."""
    view = shared["scene"]
    yield view
    view.page.set_viewport_size(WIDE["viewport"])
    view.page.emulate_media(color_scheme="light", reduced_motion="reduce")
    view.check(live_file)


@pytest.fixture
def phone(shared: dict[str, Scene], live_file: Path) -> Iterator[Scene]:
    """390 pixels wide, with touch."""
    yield shared["phone"]
    shared["phone"].check(live_file)
