"""`minise.explain` and `minise explain`: the page's markup, the files and what is refused."""

from __future__ import annotations

import json
from xml.etree import ElementTree

import pytest

from minise import Question
from minise.explaining.page import explain
from tests.support.browser import HOSTILE
from tests.support.commands import Q, assert_one_line, run


def test_text_of_a_user_cannot_end_the_script_or_become_markup(lm) -> None:
    page = explain(lm, Question(HOSTILE, [HOSTILE, "b", f"c{HOSTILE}"]), group_size=2, trials=1)
    assert page.html.count("<script") == page.html.count("</script>") == 2
    assert "<img" not in page.html
    assert "\u2028" not in page.html.partition('id="data">')[2].partition("</script>")[0]
    text = page.html.partition('id="data">')[2].partition("</script>")[0]
    assert json.loads(text)["question"] == HOSTILE
    assert "49" not in page.data["question"]


def test_the_page_loads_nothing_from_outside(page) -> None:
    for word in ("http://", "https://", "@import", "fetch(", "XMLHttpRequest", "url("):
        rest = page.html.replace("http://www.w3.org/2000/svg", "").replace(
            "http://www.w3.org/1999/xhtml", ""
        )
        assert word not in rest, word
    assert "default-src 'none'" in page.html


def test_a_notebook_shows_the_page_in_a_frame(page) -> None:
    shown = page._repr_html_()
    assert shown.startswith('<iframe srcdoc="')
    assert shown.count("<") == 2  # the page is escaped
    assert 'sandbox="allow-scripts"' in shown
    assert repr(page).startswith("Page('Which is a bird?', ")


def test_the_command_writes_the_page_and_the_figure(capsys, tmp_path, llama_folder) -> None:
    output, figure = tmp_path / "page.html", tmp_path / "mask.svg"
    files = ("--output", output, "--figure", figure)
    command = ("explain", "--model", llama_folder, *Q, "--trials", 2)
    status, out, err = run(capsys, *command, *files)
    assert (status, err) == (0, "")
    assert out.startswith(f"written: {output} (")
    assert "equal bit for bit" in out
    assert "Which is a bird?" in output.read_text(encoding="utf-8")
    ElementTree.fromstring(figure.read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["--output", "{}"], ["{}"]),
        (["--output", "{}/none/page.html"], ["/none/page.html"]),
        (["--figure", "{}/mask.png"], ["mask.png", ".svg"]),
        (["--figure", "{}/none/mask.svg"], ["/none/mask.svg"]),
        (["--trials", "600", "--group-size", "1"], ["1,800 groups", "1,000"]),
        (["--trials", "0"], ["trials", "0"]),
        (["--output", "/dev/full"], ["/dev/full"]),
    ],
)
def test_unusable_arguments_are_one_line(
    capsys, tmp_path, llama_folder, arguments: list[str], parts: list[str], monkeypatch
) -> None:
    monkeypatch.chdir(tmp_path)
    options = [argument.format(tmp_path) for argument in arguments]
    outcome = run(capsys, "explain", "--model", llama_folder, *Q, "--trials", 1, *options)
    assert_one_line(*outcome, [part.format(tmp_path) for part in parts])
    assert not (tmp_path / "page.html").exists()
