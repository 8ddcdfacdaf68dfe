"""Headless Chromium and Firefox, driven by Playwright, and node: what tests of pages do with them.
Without them such tests are skipped. `tests/lab/page/conftest.py` has the fixtures."""

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from minise import Question

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
BROWSER = next((path for name in NAMES if (path := shutil.which(name))), None)
FIREFOX = shutil.which("firefox-esr") or shutil.which("firefox")
WITHOUT = "no Playwright: pip install 'minise[browser]'"
MARKS = [
    pytest.mark.skipif(BROWSER is None, reason="no Chromium here; on Debian: apt install chromium"),
    pytest.mark.skipif(find_spec("playwright") is None, reason=WITHOUT),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
NODE = shutil.which("node")
needs_node = pytest.mark.skipif(NODE is None, reason="no node here; on Debian: apt install nodejs")
Run = Callable[..., Any]  # a script and its data -> what it tells
WIDE: dict[str, Any] = {"viewport": {"width": 1400, "height": 900}}
PHONE: dict[str, Any] = {
    "viewport": {"width": 390, "height": 844},
    "device_scale_factor": 2,
    "has_touch": True,
    "is_mobile": True,
}
HOSTILE = (
    "</script><script>hacked=1</script><!--<img src=x onerror=hacked=1> & {{ 7*7 }} \u2028\x07\"'"
)
MOST = 120_000  # milliseconds that a page may take for one thing, beside other work
FOREIGN = Question("ما هي؟ 👨\u200d👩\u200d👧", ["القاهرة", "é", "ירושלים", "è"])


@dataclass
class View:
    """An open page, the messages of its console, and its requests."""

    page: Any
    errors: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def text(self, selector: str) -> str:
        return str(self.page.inner_text(selector))

    def settle(self) -> None:
        self.page.wait_for_selector("html[data-ready=yes]", state="attached")

    def check(self, path: Path) -> None:
        """Nothing was complained of, and nothing asked for but the page itself. (A worker is
        started from a blob, which is part of the page.)"""
        errors, loaded = [*self.errors], [*self.requests]
        self.errors.clear()
        self.requests.clear()
        assert errors == [], errors
        loaded = [url for url in loaded if not url.startswith(("data:", "blob:"))]
        assert {url.partition("#")[0] for url in loaded} <= {path.as_uri()}

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

    def skip_guesses(self) -> None:
        """Some scenes hide their results until there is a guess."""
        address = self.page.evaluate("location.hash.slice(1)")
        for name in ("ask", "why", "split", "pack", "leak", "read"):
            self.go(name)
            if self.page.locator("#guess .skip:visible").count():
                self.page.click("#guess .skip")
        self.go(address or "ask")

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
        for _ in range(1800):
            if self.page.evaluate(condition):
                return
            self.page.wait_for_timeout(50)
        raise AssertionError(f"after 90 s not yet: {condition}")


@contextmanager
def browsers() -> Iterator[dict[str, Callable[[], Any]]]:
    """What starts each browser by its name. Firefox runs as it is installed: Playwright speaks
    WebDriver BiDi to it."""
    from playwright.sync_api import sync_playwright

    options = ["--disable-background-networking", "--disable-gpu"]
    options += ["--no-sandbox"] if os.name == "posix" and os.geteuid() == 0 else []
    with sync_playwright() as driver:
        opened: list[Any] = []

        def start(kind: Any, **how: Any) -> Any:
            opened.append(kind.launch(**how))
            return opened[-1]

        yield {
            "chromium": lambda: start(driver.chromium, executable_path=BROWSER, args=options),
            "firefox": lambda: start(
                driver.firefox, executable_path=FIREFOX, channel="moz-firefox"
            ),
        }
        for one in opened:
            one.close()


def open_page(
    browser: Any, path: Path, address: str = "", guess: bool = True, **options: Any
) -> View:
    """Open a page from the disk, at an address after "#". `guess`: past the guesses."""
    view = View(browser.new_context(**options).new_page())
    view.page.set_default_timeout(MOST)

    def told(text: str) -> None:
        if "willReadFrequently" not in text:  # how these tests read a canvas
            view.errors.append(text)

    view.page.on("console", lambda message: told(message.text))  # warnings count too
    view.page.on("pageerror", lambda error: told(str(error)))
    view.page.on("request", lambda request: view.requests.append(request.url))
    view.page.goto(f"{path.as_uri()}#{address}" if address else path.as_uri())
    view.settle()
    if guess:
        view.skip_guesses()
    return view


def run_node(folder: Path, script: str, data: Any = None) -> Any:
    """Run a script beside the modules in a folder. It finds `data` under this name and gives its
    result to `tell`."""
    (folder / "data.json").write_text(json.dumps(data))
    text = (
        'import { readFileSync, writeFileSync } from "node:fs";\n'
        'const data = JSON.parse(readFileSync("data.json"));\n'
        "const tell = (value) => console.log(JSON.stringify(value));\n"
    )
    (folder / "script.js").write_text(text + script)
    command = [str(NODE), "script.js"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)
