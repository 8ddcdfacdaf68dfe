"""`minise.explain` and `minise explain`: the page, and what is refused."""

from dataclasses import replace
from pathlib import Path

import pytest

import minise
from minise import InputError, LocalModel, Question, explain
from minise.equal_bits.decoder import EqualBits
from tests.support.browser import HOSTILE
from tests.support.commands import Q, assert_one_line, run
from tests.support.tiny import FAMILIES, QWEN3, write_checkpoint


@pytest.fixture(scope="module")
def lm(tmp_path_factory: pytest.TempPathFactory) -> LocalModel:
    return minise.load(write_checkpoint(tmp_path_factory.mktemp("m") / "llama", FAMILIES["llama"]))


def test_a_notebook_shows_the_page_in_a_frame(lm: LocalModel) -> None:
    page = explain(lm, Question("Which is a bird?", ["wren", "oak"], answer=0), 1, 2)
    shown = page._repr_html_()
    assert shown.startswith('<iframe srcdoc="')
    assert shown.count("<") == 2  # the page is escaped
    assert 'sandbox="allow-scripts"' in shown
    assert "Which is a bird?" in repr(page)
    assert page.recorded == ""


def test_text_of_a_user_cannot_end_the_script_or_become_markup(lm: LocalModel) -> None:
    page = explain(lm, Question(HOSTILE, [HOSTILE, "b", f"c{HOSTILE}"]), group_size=2, trials=1)
    assert page.html.count("<script") == page.html.count("</script>") == 2
    assert "<img" not in page.html


def test_more_choices_than_the_page_shows_are_refused(lm: LocalModel) -> None:
    with pytest.raises(InputError, match="9 choices; the page shows 2 to 8"):
        explain(lm, Question("Which?", [f"c{i}" for i in range(9)]))


def test_a_model_that_runs_elsewhere_is_refused(lm: LocalModel) -> None:
    """The page looks into layers, which another library or a server does not show."""
    elsewhere = replace(lm, name="server:somewhere", decoder=object())
    with pytest.raises(InputError, match="server:somewhere runs elsewhere; give the folder"):
        explain(elsewhere, Question("Which is a bird?", ["wren", "oak"]))


def test_a_model_with_equal_bits_is_recorded(lm: LocalModel) -> None:
    """The page's own model computes as the plain decoder does."""
    equal = replace(lm, decoder=EqualBits(lm.decoder))
    page = explain(equal, Question("Which is a bird?", ["wren", "oak"], answer=0), 1, 1)
    assert page.recorded == "it runs with equal bits, which the live page has not"


@pytest.mark.parametrize(
    ("family", "how"),
    [(FAMILIES["mistral"], "the model runs in it"), (QWEN3, "because the live page has no qwen3")],
)
def test_the_command_writes_the_page(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, family, how: str
) -> None:
    model, output = write_checkpoint(tmp_path / "m", family), tmp_path / "page.html"
    where = ("--model", model, "--output", output)
    status, out, err = run(capsys, "explain", *where, *Q, "--trials", 2)
    assert status == 0
    assert out.startswith(f"written: {output} (")
    assert how in out
    assert ("recording 1 of 4, Ask" in err) is ("qwen3" in how)
    page = output.read_text(encoding="utf-8")
    assert '"question":"Which is a bird?"' in page
    assert str(tmp_path) not in page


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["--output", "{}"], ["{}"]),
        (["--output", "{}/none/page.html"], ["/none/page.html"]),
        (["--trials", "41"], ["41 trials; the page shows 1 to 40"]),
        (["--trials", "0"], ["trials", "0"]),
        (["--seed", "10000"], ["10,000 as seed; the page shows 0 to 9,999"]),
        (["--output", "/dev/full"], ["/dev/full"]),
    ],
)
def test_unusable_arguments_are_one_line(
    capsys, tmp_path: Path, arguments: list[str], parts: list[str], monkeypatch
) -> None:
    monkeypatch.chdir(tmp_path)
    model = write_checkpoint(tmp_path / "llama", FAMILIES["llama"])
    options = [argument.format(tmp_path) for argument in arguments]
    outcome = run(capsys, "explain", "--model", model, *Q, "--trials", 1, *options)
    assert_one_line(*outcome, [part.format(tmp_path) for part in parts])
    assert not (tmp_path / "page.html").exists()
