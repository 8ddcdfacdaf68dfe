"""Headless Chromium, driven by Playwright, for tests of the page: `show` opens a page from the disk
and holds that it complains of nothing and asks for nothing. Without a browser tests are skipped.

`firefox` opens a page in the machine's Firefox, which Playwright does not drive: by Marionette, the
protocol that every Firefox has."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from minise import LanguageModel, Question
from minise.explaining.page import Page, explain
from tests.support.explained import FOREIGN
from tests.support.tiny import FAMILIES, load_tiny

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
BROWSER = next((path for name in NAMES if (path := shutil.which(name))), None)
FIREFOX = shutil.which("firefox-esr") or shutil.which("firefox")
playwright = pytest.importorskip(
    "playwright.sync_api", reason="no Playwright: pip install 'minise[browser]'"
)
MARKS = [
    pytest.mark.skipif(BROWSER is None, reason="no Chromium here; on Debian: apt install chromium"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
QUESTION = Question("Which is a bird?", ["wren", "a trout", "oak", "the red ant", "quartz"])
SETTINGS: dict[str, Any] = {"group_size": 2, "trials": 3, "seed": 4}


@dataclass
class View:
    """An open page, the messages of its console, and its requests."""

    page: Any
    errors: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def text(self, selector: str) -> str:
        return self.page.inner_text(selector)

    def rows(self, table: str) -> list[list[str]]:
        """The cells of a table's body, also of one in closed details."""
        cells = "rows => rows.map(row => [...row.children].map(cell => cell.textContent.trim()))"
        return self.page.eval_on_selector_all(f"{table} tbody tr", cells)

    def open_table(self, details: str) -> list[list[str]]:
        """Open the details and return the cells of their table. It is filled when the browser
        reports that they are open, which can be some time after the click."""
        self.page.click(f"{details} summary")
        self.page.wait_for_selector(f"{details} tbody tr")
        return self.rows(f"{details} table")

    def lit(self) -> list[int]:
        """The rows that are lit up in the sequence."""
        ids = self.page.eval_on_selector_all("#sequence .lit", "all => all.map(one => one.id)")
        return sorted(int(name[1:]) for name in ids)

    def settle(self) -> None:
        self.page.wait_for_selector("html[data-ready=yes]", state="attached")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as driver:
        options = ["--disable-background-networking", "--disable-gpu"]
        options += ["--no-sandbox"] if os.name == "posix" and os.geteuid() == 0 else []
        opened = driver.chromium.launch(executable_path=BROWSER, args=options)
        yield opened
        opened.close()


@pytest.fixture
def show(browser: Any, tmp_path: Path) -> Iterator[Callable[..., View]]:
    """Open a page from the disk. At the end no page may have complained or asked for anything."""
    opened: list[View] = []

    def open_(html: str, **options: Any) -> View:
        context = browser.new_context(**options)
        path = tmp_path / f"page-{len(opened)}.html"
        path.write_text(html, encoding="utf-8")
        view = View(context.new_page())
        opened.append(view)
        # Warnings count too, but for one about how these tests read a canvas.
        errors = view.errors
        view.page.on("console", lambda m: "willReadFrequently" in m.text or errors.append(m.text))
        view.page.on("pageerror", lambda error: view.errors.append(str(error)))
        view.page.on("request", lambda request: view.requests.append(request.url))
        view.page.goto(path.as_uri())
        view.settle()
        return view

    yield open_
    for number, view in enumerate(opened):
        assert view.errors == []
        loaded = [url for url in view.requests if not url.startswith("data:")]
        assert loaded == [(tmp_path / f"page-{number}.html").as_uri()]
        view.page.context.close()


@pytest.fixture(scope="module")
def explained(tmp_path_factory: pytest.TempPathFactory) -> tuple[LanguageModel, Page]:
    lm = load_tiny(tmp_path_factory.mktemp("llama"), FAMILIES["llama"])
    return lm, explain(lm, QUESTION, **SETTINGS)


@pytest.fixture(scope="module")
def foreign(explained: tuple[LanguageModel, Page]) -> Page:
    """A question in other scripts than Latin, and with an emoji of several characters."""
    return explain(explained[0], FOREIGN, group_size=2, trials=1)


@pytest.fixture
def view(show: Callable[..., View], explained: tuple[LanguageModel, Page]) -> View:
    return show(explained[1].html)


class Firefox:
    """A headless Firefox. A message of Marionette is its length, a colon and a list as JSON:
    [0, id, command, parameters], answered by [1, id, error, result]."""

    def __init__(self, profile: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        preferences = {"marionette.port": port, "datareporting.policy.dataSubmissionEnabled": False}
        lines = [f"user_pref({json.dumps(n)}, {json.dumps(v)});" for n, v in preferences.items()]
        (profile / "user.js").write_text("\n".join(lines))
        command = [str(FIREFOX), "--headless", "--marionette", "--profile", str(profile)]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        environment = {**os.environ, "HOME": str(profile)}
        self.process = subprocess.Popen(command, env=environment, **quiet)
        self.socket = self._connect(port)
        self._read()  # its greeting
        self.send("WebDriver:NewSession", {})

    def _connect(self, port: int) -> socket.socket:
        for _ in range(240):
            try:
                return socket.create_connection(("127.0.0.1", port), timeout=60)
            except OSError:
                time.sleep(0.25)
        raise TimeoutError("Firefox does not answer")

    def _read(self) -> Any:
        digits = b""
        while (byte := self.socket.recv(1)) != b":":
            digits += byte
        message = b""
        while len(message) < int(digits):
            message += self.socket.recv(int(digits) - len(message))
        return json.loads(message)

    def send(self, command: str, parameters: dict[str, Any]) -> Any:
        text = json.dumps([0, 1, command, parameters])
        self.socket.sendall(f"{len(text.encode())}:{text}".encode())
        _, _, error, result = self._read()
        assert error is None, error
        return result

    def run(self, script: str) -> Any:
        """The value that the script returns, run by the page itself."""
        value = f"(() => {{{script}}})() ?? null"
        inner = f"document.documentElement.dataset.result = JSON.stringify({value})"
        outer = (
            "const one = document.createElement('script'); one.textContent = arguments[0];"
            "document.body.append(one); return document.documentElement.dataset.result"
        )
        result = self.send("WebDriver:ExecuteScript", {"script": outer, "args": [inner]})
        return json.loads(result["value"])

    def open(self, path: Path) -> None:
        self.send("WebDriver:Navigate", {"url": path.as_uri()})
        for _ in range(240):
            if self.run("return document.documentElement.dataset.ready") == "yes":
                return
            time.sleep(0.25)
        raise TimeoutError(self.run("return document.body.innerText"))

    def close(self) -> None:
        self.socket.close()
        self.process.terminate()
        self.process.wait(30)


@pytest.fixture(scope="module")
def firefox(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Firefox]:
    if FIREFOX is None:
        pytest.skip("no Firefox here; on Debian: apt install firefox-esr")
    opened = Firefox(tmp_path_factory.mktemp("profile"))
    yield opened
    opened.close()
