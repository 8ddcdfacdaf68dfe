"""`minise.explain` and `minise explain`: the page, and what is refused."""

from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("hypothesis", reason="it draws values; the extra [test] has it")

from hypothesis import given
from hypothesis import strategies as st

import minise
from minise import InputError, LocalModel, Question, explain
from minise.lab.commands.explain import Options
from minise.lab.equal_bits.decoder import EqualBits
from tests.lab.claims.test_readers import bounded
from tests.lab.support.browser import HOSTILE
from tests.reference.support.cases import cases
from tests.reference.support.commands import Q, assert_one_line, run
from tests.reference.support.tiny import ALL_FAMILIES, FAMILIES, QWEN3, write_checkpoint


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


def test_as_many_choices_are_shown_as_there_are_labels(lm: LocalModel) -> None:
    choices = [f"c{i}" for i in range(27)]
    assert '"c25"' in explain(lm, Question("Which?", choices[:26]), 25, 1).html
    with pytest.raises(InputError, match="27 choices; the page shows 2 to 26"):
        explain(lm, Question("Which?", choices))
    with pytest.raises(InputError, match="26 choices in a group; the page shows 1 to 25"):
        explain(lm, Question("Which?", choices[:26]), 26, 1)


def test_a_prompt_that_the_model_cannot_read_is_refused_also_for_a_live_page(
    lm: LocalModel,
) -> None:
    with pytest.raises(InputError, match=r"a prompt has \d+ tokens, but .* positions for \d+"):
        explain(lm, Question("Which? " * 400, ["a", "b"]))


def test_git_does_not_see_the_page_that_the_command_writes() -> None:
    """At the top of a clone: minise/lab/page/page.html is a source."""
    ignored = (Path(minise.__file__).parents[1] / ".gitignore").read_text().splitlines()
    assert f"/{Options().output}" in ignored


def test_a_model_that_runs_elsewhere_is_refused(lm: LocalModel) -> None:
    """The page looks into layers, which another library or a server does not show."""
    elsewhere = replace(lm, name="server:somewhere", decoder=object())
    with pytest.raises(InputError, match="of server:somewhere are not minise's; give the folder"):
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


SOUND = {"question": "Which?", "group-size": 2, "trials": 2, "seed": 0}
STRANGE = st.sampled_from(
    ["", " ", "a", HOSTILE, "é\0\x1b[2J", "x" * 900, "{label}", "-1", "0", "1", "25", "26", "1e3"]
)
MANY = st.sampled_from([2, 3, 8, 25, 26]) | st.sampled_from([0, 27, 1000])


@cases(25)
@given(
    changes=st.dictionaries(st.sampled_from([*SOUND, "choice"]), STRANGE, max_size=2),
    many=MANY,
    family=st.sampled_from(["llama", "qwen3"]),
)
def test_any_values_make_a_page_or_are_refused_in_one_line(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    changes: dict[str, str],
    many: int,
    family: str,
) -> None:
    model, output = tmp_path / family, tmp_path / "page.html"
    if not model.exists():
        write_checkpoint(model, ALL_FAMILIES[family])
    words = [f"--choice=c{number}" for number in range(many)]
    for name, value in {**SOUND, **changes}.items():
        words.append(f"--{name}={value}")
    output.unlink(missing_ok=True)
    with bounded():
        status, out, err = run(capsys, "explain", "--model", model, "--output", output, *words)
    assert status in (0, 2)
    assert output.exists() is (status == 0)
    if status == 2:
        assert_one_line(status, out, err, [])
