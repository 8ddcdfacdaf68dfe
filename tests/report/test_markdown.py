"""Text from outside in a report: what a reader sees is the text, and nothing of it is live."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minise.methods.sample import Sample
from minise.report.disagreements import Disagreement
from minise.report.markdown import as_markdown
from minise.report.results import Results
from minise.report.tables import render
from tests.support.results import cell, make, table

LIVE = [
    *("<b>x</b>", "<img src=https://e.org/x.png>", "![x](https://e.org/x.png)", "[x](//e.org)"),
    *("a|b", "a\\|b", "a\\\\|b", "|", "\\", "`|`", "``", "a\r\n\r\n# b", "a\u2028# b", "![x][y]"),
    *("[y]: //e.org", "&lt;b&gt;", "&#60;b>", "*x*", "_x_", "__x__", "~x~", "~~x~~", "**"),
    *("# x", "> x", "- x", "+ x", "1. x", "1234) x", "---", "***", "===", "```", "~~~", "    x"),
    *("www.e.org", "https://e.org", "<https://e.org>", "a]b", "!", "[^1]", "\\<b>", "\\&lt;"),
]
ORDINARY = [
    "self-ensemble (m=3)",
    "self-ensemble(group_size=3,trials=40)",
    "Qwen/Qwen2-7B, float32, a first try",
    "80.0 [70.0, 90.0] (paper 80.67)",
    *("-", "+5.0 (paper +7.45)", "-3.0", "1.5", "f > 0.7", "f < 0.5.", "R&D", "what is 2 & 3?"),
]
MIXED = st.lists(st.sampled_from([*LIVE, *"<>[]()!|\\`*_~&#;:/.=+-1 x\n", "ab"]), max_size=9)


@pytest.mark.parametrize("text", ORDINARY)
def test_an_ordinary_text_stays_as_it_is(text: str) -> None:
    assert as_markdown(text) == text


@settings(max_examples=300, deadline=None)
@given(MIXED.map("".join))
def test_no_sign_is_live(text: str) -> None:
    safe = as_markdown(text)
    unescaped = re.sub(r"\\[!-/:-@[-`{-~]", "x", safe)
    assert not re.search(r"<\S", unescaped)
    for live in ("|", "`", "*", "~", "](", "][", "]:", "![", "://", "www."):
        assert live not in unescaped
    assert len(safe.splitlines()) <= 1


@settings(max_examples=300, deadline=None)
@given(MIXED.map("".join))
def test_what_is_seen_in_a_table_and_in_a_paragraph_is_the_text(text: str) -> None:
    markdown_it = pytest.importorskip("markdown_it", reason="no renderer of Markdown is installed")
    renderer = markdown_it.MarkdownIt("commonmark").enable(["table", "strikethrough"])
    seen, safe = " ".join(text.split()), as_markdown(text)
    table = renderer.parse(f"| a | b | c |\n| --- | --- | --- |\n| 1 | {safe} | 3 |\n")
    assert plain_inlines(table) == ["a", "b", "c", "1", seen, "3"]
    if seen in ("", "-"):
        return
    for before, after, block in (("", "", set()), ("- ", " (cpu).", {"bullet_list", "list_item"})):
        parsed = renderer.parse(f"{before}m{safe}{after}\n\n{before}{safe}{after}\n")
        assert plain_inlines(parsed) == [f"m{seen}{after}", f"{seen}{after}"]
        assert {token.type.rsplit("_", 1)[0] for token in parsed} == {"paragraph", "inline", *block}


@pytest.mark.parametrize("text", LIVE)
def test_each_live_text_is_seen_as_it_is(text: str) -> None:
    test_what_is_seen_in_a_table_and_in_a_paragraph_is_the_text.hypothesis.inner_test(text)


def plain_inlines(tokens: list) -> list[str]:
    """The text of each paragraph and cell, which must hold nothing but text."""
    inlines = [token for token in tokens if token.type == "inline"]
    kinds = {child.type for token in inlines for child in token.children}
    assert kinds <= {"text", "text_special"}
    return ["".join(child.content for child in token.children) for token in inlines]


HOSTILE = "![x](https://e.org/x.png) <b> a\\|b"
SHOWN = "\\![x\\](https:&#47;/e.org/x.png) &lt;b> a\\\\\\|b"


def test_a_report_shows_labels_and_names_of_tasks_as_they_are() -> None:
    run = make(None, {HOSTILE: {"standard": cell()}}, {HOSTILE: ("mine", None)})
    run["config"]["label"] = HOSTILE
    lines = table(run).splitlines()
    assert lines[0].endswith(f", {SHOWN}")
    assert lines[4].startswith(f"| {SHOWN} | standard ")
    (note,) = (line for line in lines if line.startswith("- "))
    assert note.count(SHOWN) == 2
    terminal = render([Results.from_json(run)], width=200)
    assert "![x](https://e.org/x.png) <b> a\\\\|b" in terminal


def test_differences_show_questions_and_choices_as_they_are() -> None:
    text = {"question": HOSTILE, "choices": [HOSTILE, "b"], "answer": "b"}
    p = [0.5, 0.5]
    pair = (Sample("q", 0, "h", 1, 0, p, p, 9, text=text), Sample("q", 0, "h", 1, 1, p, p, 9))
    lines = Disagreement(HOSTILE, ("a", HOSTILE), 1, [pair]).as_markdown().splitlines()
    assert lines[0].startswith(f"{SHOWN}: a and {SHOWN} disagree")
    assert lines[2] == f"| id | question | answer | a | {SHOWN} |"
    assert lines[4].startswith(f"| q | {SHOWN} | ")
