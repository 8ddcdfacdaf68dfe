"""`minise.explain` and `minise explain`: the data of the page, the figure, files and refusals."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from tokenizers import decoders

import minise
from minise import InputError, LanguageModel, Question, pack, record, self_ensemble, standard
from minise.engines import run_alone
from minise.explaining.data import MOST_BYTES, MOST_TOKENS, explain_data
from minise.explaining.page import Page, explain
from minise.method import SelfEnsemble
from minise.methods.uncertainty import uncertainty
from minise.tokenizer import Tokenizer
from tests.support.commands import Q, assert_one_line, run
from tests.support.tiny import FAMILIES, load_tiny, make_tokenizer

SETTINGS: dict[str, Any] = {"group_size": 2, "trials": 3, "seed": 4}
HOSTILE = (
    "</script><script>hacked=1</script><!--<img src=x onerror=hacked=1> & {{ 7*7 }} \u2028\x07\"'"
)


@pytest.fixture(scope="module")
def asked() -> Question:
    return Question(
        "Which is a bird?", ["wren", "a trout", "oak", "the red ant", "quartz"], answer=0
    )


@pytest.fixture(scope="module")
def page(lm: LanguageModel, asked: Question) -> Page:
    return explain(lm, asked, **SETTINGS)


def test_its_answers_are_those_of_the_library(lm, page, asked) -> None:
    data, answer = page.data, self_ensemble(lm, asked, **SETTINGS)
    plan = SelfEnsemble(2, 3).plan(lm, asked, 4)
    for shown, group in zip(data["groups"], answer.groups, strict=True):
        assert tuple(shown["choices"]) == group.choices
        assert shown["probabilities"] == pytest.approx(group.probabilities.tolist(), abs=1e-6)
        assert shown["null"] == pytest.approx(group.null, abs=1e-6)
    assert [data["shared"] + group["prompt"] for group in data["groups"]] == [
        prompt.text for prompt in plan.prompts
    ]
    ensemble = data["self_ensemble"]
    assert ensemble["prediction"] == answer.prediction
    assert ensemble["running"][-1] == pytest.approx(answer.scores.tolist(), abs=1e-6)
    assert ensemble["errors"][0] is None  # one trial tells no spread
    errors = uncertainty(plan.groups, answer).standard_errors
    assert ensemble["errors"][-1] == pytest.approx(errors.tolist(), abs=1e-6)
    other = standard(lm, asked)
    assert data["others"]["standard"]["prediction"] == other.prediction
    said = data["others"]["standard"]["probabilities"]
    assert said == pytest.approx(other.probabilities.tolist(), abs=1e-6)
    assert set(data["others"]) == {"standard", "cyclic"}


def test_the_mean_forms_as_it_would_with_fewer_trials(lm, page, asked) -> None:
    for trials, scores in enumerate(page.data["self_ensemble"]["running"], 1):
        fewer = self_ensemble(lm, asked, **{**SETTINGS, "trials": trials})
        assert scores == pytest.approx(fewer.scores.tolist(), abs=1e-6)


def test_its_sequences_are_the_layouts(lm, page, asked) -> None:
    plan = SelfEnsemble(2, 3).plan(lm, asked, 4)
    for name, merge in (("packed", False), ("tree", True)):
        layout, shown = pack(plan.prefix, plan.branches, tree=merge), page.data[name]
        assert shown["parents"] == layout.parents.tolist()
        assert shown["positions"] == layout.positions.tolist()
        assert shown["ends"] == layout.ends.tolist()
    flat, tree = page.data["packed"], page.data["tree"]
    for row, there in enumerate(page.data["tree_rows"]):
        assert flat["texts"][row] == tree["texts"][there]
        assert flat["positions"][row] == tree["positions"][there]
    own = [len(branch) for branch in plan.branches]
    assert [flat["groups"].count(group) for group in range(len(own))] == own
    assert flat["groups"].count(-1) == len(plan.prefix)


def test_the_tokens_texts_are_the_prompts(page) -> None:
    for name in ("packed", "tree"):
        shown = page.data[name]
        for group, row in zip(page.data["groups"], shown["ends"], strict=True):
            text = ""
            while row >= 0:
                text, row = shown["texts"][row] + text, shown["parents"][row]
            assert text.removeprefix("<s>") == page.data["shared"] + group["prompt"]


def test_a_tokenizer_that_writes_spaces_its_own_way_keeps_them(lm, asked) -> None:
    """As SentencePiece does, whose decoder drops the space before a text's first word."""
    backend = make_tokenizer()
    backend.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Strip(" ", 1, 0)])
    other = replace(lm, tokenizer=Tokenizer(backend, "spaces"))
    texts = explain(other, asked, group_size=2, trials=1).data["packed"]["texts"]
    assert "".join(texts).count("Which is a bird?") == 1


def test_packed_equals_separate_and_the_ablations_do_not(lm, page) -> None:
    data, L = page.data, lm.config.num_hidden_layers
    packed, ends = data["packed"], data["packed"]["ends"]
    assert data["bitwise"] == {
        "dense": True, "tree": True, "without_mask": False, "without_positions": False,
    }  # fmt: skip
    assert all(v.shape == (len(packed["texts"]), L + 1) for v in data["equality"].values())
    assert not data["equality"]["dense"].any()
    tree = data["equality"]["tree"]
    assert not tree[:, : L - 1].any()
    assert not tree[ends].any()  # its top layer has no other rows
    assert np.isnan(np.delete(tree, ends, axis=0)[:, L - 1 :]).all()
    before = [row for row, group in enumerate(packed["groups"]) if group <= 0]
    later = [row for row, group in enumerate(packed["groups"]) if group > 0]
    for ablation in ("without_mask", "without_positions"):
        apart = data["equality"][ablation]
        # Nothing stands before the first group but the question. Equal, up to float64's rounding.
        assert apart[before].max() < 1e-12
        assert apart[later, L].min() > 1e-4


def test_its_attention_is_what_the_model_does(lm, page, asked) -> None:
    plan = SelfEnsemble(2, 3).plan(lm, asked, 4)
    tree = pack(plan.prefix, plan.branches, tree=True)
    L, H = lm.config.num_hidden_layers, lm.config.num_attention_heads
    flat = page.data["attention"]
    starts = np.cumsum([0, *(L * H * (p + 1) for p in page.data["tree"]["positions"])])
    assert len(flat) == starts[-1]
    for group in (0, 4):
        with record(lm.decoder, attention=True) as seen:
            run_alone(lm, plan.prefix + plan.branches[group])
        for position, row in enumerate(tree.paths()[group]):
            shown = flat[starts[row] : starts[row + 1]].reshape(L, H, position + 1) / 255
            real = np.stack([seen.attention[i][0, :, position, : position + 1] for i in range(L)])
            assert np.abs(shown - real).max() <= 0.5 / 255 + 1e-9


def test_the_last_readout_is_the_groups_answer(lm, page) -> None:
    for group in page.data["groups"]:
        assert len(group["lens"]) == lm.config.num_hidden_layers
        assert all(sum(row) == pytest.approx(1, abs=1e-5) for row in group["lens"])
        assert group["lens"][-1] == pytest.approx(
            [*group["probabilities"], group["null"]], abs=1e-6
        )
        assert group["lens"][0] != group["lens"][-1]


@pytest.mark.parametrize("more", [{"null_option": False}, {"preset": "authors-code"}])
def test_other_prompts_are_explained_too(lm, asked, more) -> None:
    page = explain(lm, asked, **SETTINGS, **more)
    assert page.data["bitwise"]["tree"]
    assert page.data["groups"][0]["null"] is None
    assert page.html


def test_a_complete_grouping_has_no_error(lm) -> None:
    two = Question("Which is a bird?", ["wren", "a trout", "oak"])
    page = explain(lm, two, group_size=2, grouping="exact")
    assert "is asked, in" in page.html
    ensemble = page.data["self_ensemble"]
    assert ensemble["errors"] == [[0.0] * 3]  # all orders are one trial


def test_with_more_choices_than_labels_the_rest_is_explained(lm) -> None:
    many = Question("Which is the third?", [f"number {n}" for n in range(30)])
    page = explain(lm, many, group_size=3, trials=1)
    assert "labels" in page.data["others"]["standard"]["left_out"]
    assert page.html.count(page.data["others"]["standard"]["left_out"]) > 2
    assert "Left out: standard: 30 choices" in page.html


# ------------------------------------------------------------------------------------ big models


@pytest.fixture(scope="module")
def deep(tmp_path_factory: pytest.TempPathFactory) -> LanguageModel:
    """As many layers as an 8B model. The size of a page with the heads' mean rests on no other fact
    of it."""
    raw = {**FAMILIES["llama"], "num_hidden_layers": 32}
    return load_tiny(tmp_path_factory.mktemp("deep"), raw, dtype=torch.float32)


def test_a_big_models_page_stays_below_5_mb_and_says_what_it_leaves_out(deep) -> None:
    long = Question("Which of these is a bird, if any?", ["wren", "oak", "trout", "zinc"] * 2)
    page = explain(deep, long, trials=18)
    assert len(page.data["packed"]["texts"]) > 1000
    assert page.data["detail"] == "low"
    assert page.data["heads"] == 1
    assert len(page.html.encode()) < 5_000_000
    assert "mean over the 4 heads" in page.html
    assert page.data["shown"] < 36
    assert f"show {page.data['shown']} of the 36 groups" in page.html
    assert len(page.data["self_ensemble"]["running"]) == 18  # the answer is whole


def test_full_detail_keeps_every_head(lm, asked) -> None:
    low = explain(lm, asked, **SETTINGS, detail="low").data
    assert (low["detail"], low["heads"]) == ("low", 1)
    full = explain(lm, asked, **SETTINGS).data
    assert full["detail"] == "full"
    assert len(full["attention"]) == 4 * len(low["attention"])


def test_no_more_tokens_are_shown_than_fit_in_the_picture(lm) -> None:
    question = Question("Which is a bird?", ["wren", "oak", "trout", "zinc"])
    data = explain(lm, question, group_size=4, trials=60, detail="full").data
    assert len(data["packed"]["texts"]) <= MOST_TOKENS
    assert data["shown"] < 60 == data["trials"]
    assert data["groups"][59]["lens"] == []
    assert data["attention"].size < 4 * MOST_BYTES


# ------------------------------------------------------------------------- the page and the figure


def test_nothing_of_a_users_ends_the_script_or_becomes_markup(lm) -> None:
    page = explain(lm, Question(HOSTILE, [HOSTILE, "b", f"c{HOSTILE}"]), group_size=2, trials=1)
    assert page.html.count("<script") == page.html.count("</script>") == 2
    assert "<img" not in page.html
    assert "\u2028" not in page.html.partition('id="data">')[2].partition("</script>")[0]
    text = page.html.partition('id="data">')[2].partition("</script>")[0]
    assert json.loads(text)["question"] == HOSTILE
    assert "49" not in page.data["question"]


def test_the_page_asks_for_nothing_outside(page) -> None:
    for word in ("http://", "https://", "@import", "fetch(", "XMLHttpRequest", "url("):
        rest = page.html.replace("http://www.w3.org/2000/svg", "").replace(
            "http://www.w3.org/1999/xhtml", ""
        )
        assert word not in rest, word
    assert "default-src 'none'" in page.html


def test_a_notebook_shows_it_in_a_frame(page) -> None:
    shown = page._repr_html_()
    assert shown.startswith('<iframe srcdoc="')
    assert shown.count("<") == 2  # the page is escaped
    assert 'sandbox="allow-scripts"' in shown
    assert repr(page).startswith("Page('Which is a bird?', ")


SVG = "{http://www.w3.org/2000/svg}"


def test_the_figure_is_the_first_trials_mask(lm, page, asked) -> None:
    plan = SelfEnsemble(2, 1).plan(lm, asked, 4)
    layout = pack(plan.prefix, plan.branches)
    root = ElementTree.fromstring(page.figure)
    rows = [g for g in root.findall(f"{SVG}g") if g.find(f"{SVG}rect") is not None]
    assert len(rows) == len(layout.tokens)
    for row, drawn in enumerate(rows):
        seen = torch.zeros(len(rows), dtype=torch.bool)
        for rect in drawn.findall(f"{SVG}rect"):
            first, count = (float(rect.get(name)) for name in ("x", "width"))
            seen[int((first - 170) / 12) :][: int(count / 12)] = True
        assert torch.equal(seen, layout.mask[row])
        assert drawn.findall(f"{SVG}text")[1].text == str(int(layout.positions[row]))
    assert page.figure.count("reads out") == len(layout.ends)


def test_a_first_trial_too_long_to_show_is_drawn_as_far_as_it_is_shown(lm) -> None:
    question = Question("Which is a bird?", ["wren", "oak", "trout", "zinc"])
    page = explain(lm, question, group_size=2, grouping="exact", detail="full")
    many = replace(page, data={**page.data, "shown": 3})
    assert many.figure.count("reads out") == 3


def test_a_hostile_figure_is_well_formed(lm) -> None:
    page = explain(lm, Question(HOSTILE, [HOSTILE, "b"]), group_size=2, trials=1)
    ElementTree.fromstring(page.figure)


# ----------------------------------------------------------------------- the library, the command


def test_it_is_called_the_same_before_and_after_its_folder_is_imported() -> None:
    text = "import minise; a = minise.explain; import minise.explaining.data\n"
    text += "b = minise.explain\n"
    text += "lm = minise.load('weights/tiny-llama'); q = minise.Question('Why?', ['x', 'y'])\n"
    text += "assert a(lm, q, trials=1).data['trials'] == b(lm, q, trials=1).data['trials'] == 1"
    root = Path(minise.__file__).parents[1]
    subprocess.run([sys.executable, "-c", text], check=True, cwd=root)


def test_the_command_writes_the_page_and_the_figure(capsys, tmp_path, llama_folder) -> None:
    output, figure = tmp_path / "page.html", tmp_path / "mask.svg"
    files = ("--output", output, "--figure", figure)
    asked = ("explain", "--model", llama_folder, *Q, "--trials", 2)
    status, out, err = run(capsys, *asked, *files)
    assert (status, err) == (0, "")
    assert out.startswith(f"{output}: ")
    assert "equal bit for bit" in out
    assert "Which is a bird?" in output.read_text(encoding="utf-8")
    ElementTree.fromstring(figure.read_text(encoding="utf-8"))
    status, out, err = run(capsys, *asked, *files, "--json")
    told = json.loads(out)
    assert told["bytes"] == output.stat().st_size
    assert told["bitwise"] == {"dense": True, "tree": True}
    assert told["detail"] == "full"


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["--output", "{}"], ["a folder", "name a file"]),
        (["--output", "{}/none/page.html"], ["no such folder to write to"]),
        (["--figure", "{}/mask.png"], [".svg"]),
        (["--figure", "{}/none/mask.svg"], ["no such folder to write to"]),
        (["--detail", "huge"], ["--detail", "huge", "low"]),
        (["--trials", "600", "--group-size", "1"], ["1,800 groups", "1,000", "fewer trials"]),
        (["--trials", "0"], ["trials 0", "below 1"]),
        (["--output", "/dev/full"], ["No space left"]),
    ],
)
def test_what_it_cannot_do_is_said_in_one_line(
    capsys, tmp_path, llama_folder, arguments: list[str], parts: list[str], monkeypatch
) -> None:
    monkeypatch.chdir(tmp_path)
    given = [argument.format(tmp_path) for argument in arguments]
    told = run(capsys, "explain", "--model", llama_folder, *Q, "--trials", 1, *given)
    assert_one_line(*told, parts)
    assert not (tmp_path / "page.html").exists()


def test_a_trial_too_long_for_the_picture_is_refused(tmp_path) -> None:
    long = {**FAMILIES["llama"], "max_position_embeddings": 4096}
    lm = load_tiny(tmp_path, long)
    question = Question("x" * 2500, ["wren", "oak"])
    with pytest.raises(InputError, match="tokens, too many for a page; shorten the question"):
        explain(lm, question)


def test_an_unknown_detail_is_refused(lm, asked) -> None:
    with pytest.raises(InputError, match='detail "medium" is unknown; use one of low, full'):
        explain_data(lm, SelfEnsemble(2, 1), asked, detail="medium")


# ---------------------------------------------------------------------------------- docs/demo.html


def test_the_demo_is_what_the_command_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    """`minise explain --output docs/demo.html`, run again. Last digits may differ elsewhere."""
    root = Path(minise.__file__).parents[1]
    monkeypatch.chdir(root)
    demo = (root / "docs/demo.html").read_text(encoding="utf-8")
    assert len(demo.encode()) <= 1_500_000
    from minise.commands.options import QUESTION
    from minise.names import DEFAULT_MODEL

    page = explain(minise.load(DEFAULT_MODEL), QUESTION)
    cut: Callable[[str], tuple[str, dict[str, Any], str]] = _parts
    (head, there, script), (now, here, now_script) = cut(demo), cut(page.html)
    assert script == now_script
    assert head.partition("</style>")[0] == now.partition("</style>")[0]
    assert there.keys() == here.keys()
    assert there["packed"] == here["packed"]
    assert there["bitwise"] == here["bitwise"]
    for a, b in zip(there["groups"], here["groups"], strict=True):
        assert a["prompt"] == b["prompt"]
        assert a["probabilities"] == pytest.approx(b["probabilities"], abs=2e-3)


def _parts(page: str) -> tuple[str, dict[str, Any], str]:
    """The markup, the data and the script of a page."""
    head, _, rest = page.partition('id="data">')
    text, _, script = rest.partition("</script>")
    return head, json.loads(text), script
