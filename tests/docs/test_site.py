"""The site: mkdocs.yml builds without a warning, its links lead somewhere, and it asks no host."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote

import pytest

import minise
from minise.commands.cli import COMMANDS

pytest.importorskip("mkdocs", reason="no mkdocs: pip install 'minise[docs]'")

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
LOADS = {"src", "srcset", "href", "data", "poster", "action", "formaction", "xlink:href"}


class Html(HTMLParser):
    """What a page loads, where it leads, and its anchors."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        self.loads: list[str] = []
        self.leads: list[str] = []
        self.anchors: set[str] = set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        for name, value in attributes:
            if name == "id" and value:
                self.anchors.add(value)
            elif name in LOADS and value and not value.startswith("data:"):
                (self.leads if tag == "a" else self.loads).append(value)


class Site(NamedTuple):
    folder: Path
    status: int
    output: str
    pages: dict[Path, Html]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    folder = tmp_path_factory.mktemp("site").resolve()
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1", "MINISE_REPOSITORY": "https://a.example/m"},
    )  # fmt: skip
    return Site(
        folder, done.returncode, done.stdout, {path: Html(path) for path in folder.rglob("*.html")}
    )


def outside(target: str) -> bool:
    return bool(re.match(r"([a-z]+:)?//|(mailto|javascript|blob):", target, re.IGNORECASE))


def test_the_strict_build_has_no_warning(site: Site) -> None:
    assert "WARNING" not in site.output
    assert site.status == 0, site.output


def test_every_page_of_docs_stands_in_the_navigation(site: Site) -> None:
    index = site.pages[site.folder / "index.html"]
    leads = {(site.folder / target).resolve() for target in index.leads if not outside(target)}
    pages = [path.relative_to(DOCS).with_suffix(".html") for path in DOCS.rglob("*.md")]
    assert len(pages) > 20
    more = ["live.html", "demo.html", "cli.html", "walkthrough.html", "exercises.html"]
    assert {site.folder / path for path in [*pages, *more]} - leads == set()


def test_no_page_loads_anything_from_another_host(site: Site) -> None:
    assert len(site.pages) > 30
    loads = {(path.name, one) for path, page in site.pages.items() for one in page.loads}
    assert len(loads) > 100
    assert [pair for pair in loads if outside(pair[1])] == []
    styles = [path.read_text(encoding="utf-8") for path in site.folder.rglob("*.css")]
    styles += [path.read_text(encoding="utf-8") for path in site.pages]
    assert [
        one for text in styles for one in re.findall(r"(?:url\(|@import )['\"]?http", text)
    ] == []


def test_every_link_of_the_site_leads_to_a_file_and_an_anchor(site: Site) -> None:
    """Also those of raw HTML, which mkdocs does not check."""
    assert len(site.pages) > 30
    dead = []
    for path, page in site.pages.items():
        for target in [*page.leads, *page.loads]:
            name, _, anchor = unquote(target.partition("?")[0]).partition("#")
            file = (path.parent / name).resolve() if name else path
            known = site.pages.get(file)
            is_there = file.exists() and file.is_relative_to(site.folder)
            is_dead = not is_there or (anchor and known and anchor not in known.anchors)
            if is_dead and not outside(target):
                dead.append((path.name, target))
    assert dead == []


def test_a_file_outside_of_docs_opens_as_its_page_or_as_text(site: Site) -> None:
    overview, index = (site.pages[site.folder / name] for name in ("overview.html", "index.html"))
    copy = "files/minise/layout.py.txt"
    assert copy in overview.leads
    assert (site.folder / copy).read_bytes() == (ROOT / "minise/layout.py").read_bytes()
    assert {"overview.html#read-it", "exercises.html", "walkthrough.html"} <= {*index.leads}
    assert "https://a.example/m" in index.leads  # the footer, where the address is known


def test_the_site_has_every_public_name_and_every_command(site: Site) -> None:
    names = {name for name in site.pages[site.folder / "api.html"].anchors if name.count(".") == 1}
    assert names == {f"minise.{name}" for name in minise.__all__}
    commands = {f"minise-{name}" for name in COMMANDS}
    assert commands <= site.pages[site.folder / "cli.html"].anchors


def test_markdown_means_on_the_site_what_it_means_on_a_forge(site: Site) -> None:
    """Two spaces put a list into a list item, and an anchor is the heading in small letters."""
    paper = (site.folder / "paper.html").read_text(encoding="utf-8")
    assert re.search(r"found in the text\. Here\s*<ul>\s*<li><code>cot</code>", paper)
    assert "a-model-family" in site.pages[site.folder / "extending.html"].anchors
    api = (site.folder / "api.html").read_text(encoding="utf-8")
    assert "<blockquote>" not in api  # an example, >>> 1 + 1, is code


def test_the_notebook_is_a_page_with_its_picture_and_a_file_to_load(site: Site) -> None:
    page = (site.folder / "walkthrough.html").read_text(encoding="utf-8")
    assert 'src="data:image/png;base64,' in page
    assert "dense equals separate, bit for bit: True" in page
    assert "walkthrough.ipynb" in site.pages[site.folder / "walkthrough.html"].leads
    assert (site.folder / "walkthrough.ipynb").read_bytes() == (
        DOCS / "walkthrough.ipynb"
    ).read_bytes()


def test_the_first_page_has_the_live_page_and_leads_three_readers(site: Site) -> None:
    index = site.pages[site.folder / "index.html"]
    assert "live.html" in index.loads
    text = index.path.read_text(encoding="utf-8")
    readers = re.findall(r'<h2 id="you-want-to-([a-z]+)', text)
    assert readers == ["learn", "verify", "build"]
