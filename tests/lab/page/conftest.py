"""The live page of the shipped tiny-llama, in a browser and in node. At the end no page may have
complained or asked for anything."""

import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import minise
from minise import LocalModel
from minise.commands.options import QUESTION
from tests.lab.support.browser import (
    PHONE,
    WIDE,
    Run,
    View,
    browsers,
    open_page,
    run_node,
)

ROOT = Path(minise.__file__).parents[1]


@pytest.fixture(scope="session")
def tiny_llama() -> LocalModel:
    """The shipped checkpoint that runs in the live page of these tests."""
    return minise.load(ROOT / "weights" / "tiny-llama")


@pytest.fixture(scope="session")
def live_file(tmp_path_factory: pytest.TempPathFactory, tiny_llama: LocalModel) -> Path:
    path: Path = tmp_path_factory.mktemp("live") / "live.html"
    path.write_text(minise.explain(tiny_llama, QUESTION).html, encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def start() -> Iterator[dict[str, Callable[[], Any]]]:
    with browsers() as found:
        yield found


@pytest.fixture(scope="module")
def browser(start: dict[str, Callable[[], Any]]) -> Any:
    return start["chromium"]()


@pytest.fixture
def open_scene(browser: Any, live_file: Path) -> Iterator[Callable[..., View]]:
    """A live page of its own, 1400 pixels wide: `open_scene("split?m=2")`."""
    opened: list[View] = []

    def open_(address: str) -> View:
        opened.append(open_page(browser, live_file, address, **WIDE))
        return opened[-1]

    yield open_
    for view in opened:
        view.check(live_file)
        view.page.context.close()


@pytest.fixture(scope="module")
def shared(browser: Any, live_file: Path) -> dict[str, View]:
    """Two pages for all tests of a module, because to open one takes a second or two."""
    looks = {"scene": WIDE, "phone": PHONE}
    still = {"address": "ask", "reduced_motion": "reduce"}
    return {name: open_page(browser, live_file, **still, **look) for name, look in looks.items()}


@pytest.fixture
def scene(shared: dict[str, View], live_file: Path) -> Iterator[View]:
    """1400 pixels wide, light, without motion."""
    view = shared["scene"]
    yield view
    view.page.set_viewport_size(WIDE["viewport"])
    view.page.emulate_media(color_scheme="light", reduced_motion="reduce")
    view.check(live_file)


@pytest.fixture
def phone(shared: dict[str, View], live_file: Path) -> Iterator[View]:
    """390 pixels wide, with touch."""
    yield shared["phone"]
    shared["phone"].check(live_file)


@pytest.fixture(scope="session")
def node(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The modules of minise/page in node: `node(script, data)`."""
    folder = tmp_path_factory.mktemp("node")
    for path in (ROOT / "minise" / "lab" / "page").glob("*.js"):
        shutil.copy(path, folder)
    # Without this, node takes the files for scripts of its older kind.
    (folder / "package.json").write_text('{"type": "module"}')
    return partial(run_node, folder)
