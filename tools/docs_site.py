"""The hook of mkdocs.yml: what the site has beside the pages of docs/.

Files of the repository outside of docs/ are on the site, too: README.md and the like as pages, the
notebook as a page, and every other file that a page links to, or names as `code`, as a copy in
plain text. So links need no address of a repository and fit the code that the site was made from.
With that address in the variable MINISE_REPOSITORY, the footer links to it.
"""

from __future__ import annotations

import json
import os
import posixpath
import re
from pathlib import Path
from typing import Any

import markdown
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from minise import explain, load
from minise.commands.options import QUESTION
from tools.cli_page import page as cli_page

ROOT = Path(__file__).parents[1]
NOTEBOOK = "docs/walkthrough.ipynb"
PAGES = {  # a file of the repository -> its page
    "README.md": "overview.md",
    "ARCHITECTURE.md": "architecture.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changes.md",
    "exercises/README.md": "exercises.md",
    "exercises/hints.md": "hints.md",
    NOTEBOOK: "walkthrough.md",
}
LIVE = "live.html"
# In place of the picture of the first page, on the site alone: a forge shows no frame.
FRAME = f"""<iframe src="{LIVE}" title="The live page: many prompts, one pass"
style="width: 100%; height: 46rem; border: 1px solid gray"></iframe>

[The live page, alone on the screen]({LIVE})"""
LINK = re.compile(
    r"(?P<before>\[[^]]*\]\(|\b(?:src|srcset|href)=\")(?P<target>[^)\"#\s:]+)(?=[)\"#])"
    r"|(?<!`)`(?P<name>(?:minise|tests|tools|docs|exercises)/[\w./-]+\.\w+|[A-Z]+\.md|live\.html)`"
)


class _ShortIndent(markdown.Extension):  # type: ignore[misc]
    """Two spaces put a line into a list item, as on a forge; Markdown's own rule is four."""

    def extendMarkdown(self, md: markdown.Markdown) -> None:
        md.tab_length = 2
        md.build_parser()  # which read the length before; so this extension must be the first


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    config.theme.static_templates.discard("404.html")  # it would need the address of the site
    config.markdown_extensions.insert(0, _ShortIndent())
    address = os.environ.get("MINISE_REPOSITORY")
    if address:
        config.extra["social"] = [{"icon": "fontawesome/brands/git-alt", "link": address}]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for path, name in PAGES.items():
        text = (ROOT / path).read_text("utf-8")
        content = _notebook(json.loads(text)) if path == NOTEBOOK else text
        files.append(File.generated(config, name, content=content))
    files.append(File.generated(config, "cli.md", content=cli_page()))
    live = explain(load(ROOT / "weights" / "tiny-llama"), QUESTION)
    files.append(File.generated(config, LIVE, content=live.html))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    name = page.file.src_uri
    if name == "api.md":  # the text on a forge; here mkdocstrings draws the same names in order
        markdown = re.sub(r"(?ms)^### `(\w+)`\n.*?(?=^###? |\Z)", r"::: minise.\1\n\n", markdown)
    if name == "index.md":
        markdown = re.sub(r"<picture>.*?</picture>", FRAME, markdown)
        page.meta["hide"] = ["navigation", "toc"]  # so that the frame is wide
    path = f"docs/{name}"
    for source, page_of_source in PAGES.items():
        if page_of_source == name:
            path = source

    def linked(match: re.Match[str]) -> str:
        target = match["name"] or posixpath.join(posixpath.dirname(path), match["target"])
        to = _on_site(posixpath.normpath(target), files, config)
        if not to or to == name:
            return match[0]
        link = posixpath.relpath(to, posixpath.dirname(name))
        if match["name"]:
            return f"[{match[0]}]({link})"
        return match["before"] + link

    # Every second part is a block of code.
    parts = re.split(r"(^ *```.*?^ *```$)", markdown, flags=re.MULTILINE | re.DOTALL)
    for number in range(0, len(parts), 2):
        parts[number] = LINK.sub(linked, parts[number])
    return "".join(parts)


def _on_site(path: str, files: Files, config: MkDocsConfig) -> str | None:
    """Where the site has a file of the repository; None if there is no such file."""
    if path in PAGES or path == LIVE:
        return PAGES.get(path, LIVE)
    if path.startswith("docs/"):
        inside = path.removeprefix("docs/")
        return inside if files.get_file_from_path(inside) else None
    if not (ROOT / path).is_file():
        return None
    copy = f"files/{path}.txt"
    if not files.get_file_from_path(copy):
        text = (ROOT / path).read_text("utf-8")
        files.append(File.generated(config, copy, content=text))
    return copy


def _notebook(notebook: dict[str, Any]) -> str:
    """A notebook as Markdown: its texts, code, and what the code printed and drew."""
    parts = []
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
        else:
            parts.append(f"```python\n{source}\n```")
        for output in cell.get("outputs", ()):
            if "text" in output:
                printed = "".join(output["text"])
                parts.append(f"```text\n{printed}```")
            elif "image/png" in output["data"]:
                png = output["data"]["image/png"]
                parts.append(f"![What the code above draws](data:image/png;base64,{png})")
    parts.append('The notebook: <a href="walkthrough.ipynb" download>walkthrough.ipynb</a>')
    return "\n\n".join(parts)
