"""`minise explain` on models of the transformers library: it shows what direct calls of the library
returns, and what the library does not show is left out with a sentence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

pytest.importorskip("transformers", reason="the reference library, extra [parity], is missing")

import minise
from minise import Question, SelfEnsemble, from_transformers, pack
from minise.explaining.data import Data
from minise.layout import causal_mask
from tests.support.bridges import make_lm, make_model, make_reader
from tests.support.commands import Q, assert_one_line, run

ASKED = Question("Which is a bird?", ["wren", "a trout", "oak", "the red ant", "quartz"], answer=0)
SETTINGS: dict[str, Any] = {"group_size": 2, "trials": 3, "seed": 4}
LAYERS = {"qwen3": "model.layers.2", "mistral": "model.layers.2", "gpt2": "transformer.h.2"}
FINAL = {"qwen3": "model.norm", "mistral": "model.norm", "gpt2": "transformer.ln_f"}
WINDOW = {"mistral": 13}


def explained(model: Any) -> tuple[Any, Data]:
    lm = from_transformers(model, make_reader())
    return SelfEnsemble(2, 3).plan(lm, ASKED, 4), minise.explain(lm, ASKED, **SETTINGS).data


@torch.no_grad()
def direct(family: str, model: Any, tokens: list[int], **arguments: Any) -> list[Tensor]:
    """Hidden states (T, D) after each layer and after the final norm, as the library returns them;
    those after the last layer from a hook on it."""
    last: list[Any] = []
    hook = model.get_submodule(LAYERS[family]).register_forward_hook(
        lambda _, args, out: last.append(out[0] if isinstance(out, tuple) else out)
    )
    options = {"output_hidden_states": True, "use_cache": False}
    output = model(torch.tensor([tokens]), **options, **arguments)
    hook.remove()
    *layers, normed = output.hidden_states[1:]
    return [*(rows[0] for rows in layers), last[0][0], normed[0]]


def difference(alone: Tensor, packed: Tensor) -> Tensor:
    """Row by row, as a part of the row's size."""
    return (packed - alone).double().norm(dim=-1) / alone.double().norm(dim=-1)


@pytest.mark.parametrize("family", LAYERS)
def test_equality_is_that_of_direct_calls(family: str) -> None:
    model = make_model(family)
    plan, data = explained(model)
    flat = pack(plan.prefix, plan.branches)
    T = len(flat.tokens)
    streams = [direct(family, model, plan.prefix + branch) for branch in plan.branches]
    starts = [0] + [len(plan.prefix)] * (len(streams) - 1)
    alone = [
        torch.cat([rows[start:] for rows, start in zip(layer, starts, strict=True)])
        for layer in zip(*streams, strict=True)
    ]
    for name, mask, positions in (
        ("dense", flat.mask, flat.positions),
        ("without_mask", causal_mask(T), flat.positions),
        ("without_positions", flat.mask, torch.arange(T)),
        ("without_both", causal_mask(T), torch.arange(T)),
    ):
        visible = mask & (positions[:, None] - positions < WINDOW.get(family, T))
        added = torch.zeros(T, T).masked_fill(~visible, torch.finfo(torch.float32).min)
        arguments = {"attention_mask": added[None, None], "position_ids": positions[None]}
        packed = direct(family, model, flat.tokens.tolist(), **arguments)
        expected = torch.stack(
            [difference(a, b) for a, b in zip(alone, packed, strict=True)], dim=1
        )
        shown = data["equality"][name]
        assert shown.shape == (T, 4)
        assert np.abs(shown - expected.numpy()).max() <= 1e-6 + 1e-4 * shown.max()
        if name == "dense":
            assert shown.max() < 1e-5
        else:
            assert shown.max() > 0.1
    assert data["equality"]["tree"].max() < 1e-5  # every token of it, in the top layer too
    assert data["bitwise"].keys() == data["equality"].keys()
    for name, equal in data["bitwise"].items():
        assert not (equal and data["equality"][name].any())
    assert data["left_out"] == []


def test_behind_the_cache_in_pieces_it_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("minise.bridges.library.TOKENS_PER_BATCH", 200)
    _, data = explained(make_model("mistral"))
    assert data["equality"]["tree"].max() < 1e-5


@pytest.mark.parametrize("family", LAYERS)
def test_ablations_are_those_of_direct_calls(family: str) -> None:
    """Answers, readouts after every layer, and attention."""
    model = make_model(family)
    plan, data = explained(model)
    flat = pack(plan.prefix, plan.branches)
    T, rows = len(flat.tokens), data["ablations"]["without_both"]["rows"]
    assert data["packed"]["ends"][1] < rows < T
    positions, mask = torch.arange(T), causal_mask(T)
    visible = mask & (positions[:, None] - positions < WINDOW.get(family, T))
    added = torch.zeros(T, T).masked_fill(~visible, torch.finfo(torch.float32).min)
    arguments = {"attention_mask": added[None, None], "position_ids": positions[None]}
    output = model(flat.tokens[None], output_attentions=True, **arguments)
    shown = data["ablations"]["without_both"]
    for prompt, end, lens, p in zip(
        plan.prompts, flat.ends, shown["lens"], shown["probabilities"], strict=True
    ):
        expected = output.logits[0, end, prompt.label_ids].softmax(dim=-1).tolist()
        assert lens[-1] == pytest.approx(expected, abs=1e-5)
        assert p == pytest.approx(expected[:-1], abs=1e-5)
    weights = torch.cat(output.attentions)[:, :, :rows, :rows].detach().numpy()
    cells = np.concatenate([weights[:, :, row, : row + 1].ravel() for row in range(rows)])
    assert np.abs(shown["attention"] / 255 - cells).max() <= 0.5 / 255 + 1e-5


@pytest.mark.parametrize("family", LAYERS)
def test_attention_is_what_a_direct_call_gives(family: str) -> None:
    model = make_model(family)
    plan, data = explained(model)
    tree, heads = pack(plan.prefix, plan.branches, tree=True), 4
    starts = np.cumsum([0, *(3 * heads * (p + 1) for p in data["tree"]["positions"])])
    assert (data["heads"], data["query_heads"]) == (heads, heads)
    assert len(data["attention"]) == starts[-1]
    assert data["windows"] == ([WINDOW[family]] if family in WINDOW else [])
    for group in (0, 4):
        tokens = torch.tensor([plan.prefix + plan.branches[group]])
        layers = model(tokens, output_attentions=True).attentions
        for at, row in enumerate(tree.paths()[group]):
            shown = data["attention"][starts[row] : starts[row + 1]].reshape(3, heads, at + 1) / 255
            real = np.stack([layer[0, :, at, : at + 1].detach().numpy() for layer in layers])
            assert np.abs(shown - real).max() <= 0.5 / 255 + 1e-6


@pytest.mark.parametrize("family", LAYERS)
def test_readouts_are_the_models_own_norm_and_head(family: str) -> None:
    model = make_model(family)
    plan, data = explained(model)
    for prompt, group in zip(plan.prompts, data["groups"], strict=True):
        *layers, _ = direct(family, model, plan.prefix + prompt.ids)
        normed = model.get_submodule(FINAL[family])(torch.stack([rows[-1] for rows in layers]))
        logits = model.get_output_embeddings()(normed)[:, prompt.label_ids]
        assert np.allclose(group["lens"], logits.softmax(dim=-1).detach(), atol=1e-5)


def test_what_follows_the_head_counts_too() -> None:
    """Logits that are capped, as Gemma 2 does, in every layer's readout."""
    _, data = explained(make_model("gemma2", final_logit_softcapping=1.0))
    for group in data["groups"]:
        assert group["lens"][-1] == pytest.approx(
            [*group["probabilities"], group["null"]], abs=1e-5
        )
        assert max(map(max, group["lens"])) < 0.89  # e² / (e² + 1): no logit is over 1


def test_answers_and_layouts_are_those_of_the_library() -> None:
    lm = make_lm("gemma3_text")
    page = minise.explain(lm, ASKED, **SETTINGS)
    data, answer = page.data, minise.self_ensemble(lm, ASKED, **SETTINGS)
    running = data["self_ensemble"]["running"]
    assert running[-1] == pytest.approx(answer.scores.tolist(), abs=1e-6)
    assert data["others"]["standard"]["prediction"] == minise.standard(lm, ASKED).prediction
    assert data["engine"] == "cache"
    assert "in one forward" not in page.html.partition("</header>")[0]
    layout = pack(
        *(lambda plan: (plan.prefix, plan.branches))(SelfEnsemble(2, 3).plan(lm, ASKED, 4))
    )
    assert data["packed"]["parents"] == layout.parents.tolist()
    assert page.figure.startswith("<svg")


def test_nothing_of_the_model_is_changed() -> None:
    model, tokens = make_model("gpt2"), torch.tensor([[0, 5, 9]])
    before = model(tokens)
    explained(model)
    after = model(tokens)
    assert torch.equal(before.logits, after.logits)
    assert after.hidden_states is None
    assert not any(module._forward_pre_hooks for module in model.modules())
    assert not model.transformer.ln_f._forward_hooks


# What the library does not show is left out, and named.


def test_sdpa_shows_no_attention() -> None:
    page = minise.explain(make_lm("qwen3", "sdpa"), ASKED, **SETTINGS)
    assert page.data["attention"] is None
    assert page.data["heads"] == 0
    assert page.data["detail"] == "full"
    assert len(page.data["equality"]) == 5
    (why,) = page.data["left_out"]
    assert why.startswith("Attention weights: sdpa does not tell them")
    assert why.endswith('; load the model with attn_implementation="eager".')
    assert page.html.count("Left out here") == 1


def test_where_packing_is_refused_only_the_cache_is_compared() -> None:
    page = minise.explain(make_lm("mpt"), ASKED, **SETTINGS)
    assert list(page.data["equality"]) == ["tree"]
    assert page.data["ablations"] == {}
    assert page.data["equality"]["tree"].max() < 1e-5
    (why,) = page.data["left_out"]
    assert why.startswith("The run dense, with and without mask and positions, is left out: ")
    assert "engine dense is not exact here" in why
    assert "was not run over this sequence" in page.html
    assert "Packed equals separate" not in page.html


def test_positions_that_run_on_beyond_the_models_are_left_out() -> None:
    data = explained(make_model("gpt2", max_position_embeddings=200))[1]
    assert len(data["packed"]["texts"]) > 200 > max(data["packed"]["positions"])
    assert list(data["ablations"]) == ["without_mask"]
    assert len(data["left_out"]) == 2
    for name, why in zip(("without_positions", "without_both"), data["left_out"], strict=True):
        assert why.startswith(f"The run {name} is left out: it needs ")
        assert why.endswith(" has 200.")


def test_where_no_engine_is_exact_each_prompt_is_asked_by_itself() -> None:
    page = minise.explain(make_lm("mamba"), ASKED, **SETTINGS)
    answer = minise.self_ensemble(make_lm("mamba"), ASKED, **SETTINGS, engine="separate")
    running = page.data["self_ensemble"]["running"]
    assert running[-1] == pytest.approx(answer.scores.tolist(), abs=1e-6)
    assert page.data["engine"] == "separate"
    assert page.data["equality"] == {}
    assert page.data["heads"] == 0
    assert all(group["lens"] for group in page.data["groups"])
    left_out = " ".join(page.data["left_out"])
    for part in ("Each prompt was asked by itself", "Attention weights", "The run dense"):
        assert part in left_out
    assert "each time by itself" in page.html


def test_a_family_without_a_final_norm_shows_no_states() -> None:
    """GPT's last norm belongs to its last layer."""
    page = minise.explain(make_lm("openai-gpt"), ASKED, **SETTINGS)
    assert page.data["equality"] == {}
    assert all(group["lens"] == [] for group in page.data["groups"])
    assert page.data["heads"] == 4
    assert any(line.startswith("Equality and readouts: ") for line in page.data["left_out"])
    assert page.html.count("Left out here") == 2


def test_a_sink_and_a_window_of_its_own_are_named() -> None:
    assert any(
        "do not sum to 1" in line for line in explained(make_model("gpt_oss"))[1]["left_out"]
    )
    assert any(
        "own window of 13" in line for line in explained(make_model("gpt_neo"))[1]["left_out"]
    )
    chunks = "Part 2 has no switch for this model's attention chunks of 13 tokens."
    assert chunks in explained(make_model("llama4_text"))[1]["left_out"]


EVERY_LAYER = "Attention weights: the library does not tell them for every layer."
NOT_SHARES = "Attention weights: in this model they are not between 0 and 1."
NO_STATES = "Equality and readouts: the library does not tell hidden states after each layer, "
NO_STATES += "before and after the final norm."


@pytest.mark.parametrize(
    ("part", "change", "why"),
    [
        ("attentions", lambda all_: tuple(2 * each for each in all_), NOT_SHARES),
        ("attentions", lambda all_: tuple(-each for each in all_), NOT_SHARES),
        ("attentions", lambda all_: all_[1:], EVERY_LAYER),
        ("attentions", lambda all_: (*all_[:-1], all_[-1][..., 1:]), EVERY_LAYER),
        ("attentions", lambda all_: tuple(each[..., 1:] for each in all_), EVERY_LAYER),
        ("attentions", lambda all_: (*all_[:-1], None), EVERY_LAYER),
        ("hidden_states", lambda all_: all_[1:], NO_STATES),
        ("hidden_states", lambda all_: (*all_[:-1], 2 * all_[-1]), NO_STATES),
        ("hidden_states", lambda all_: (all_[0], all_[1][..., 1:], *all_[2:]), NO_STATES),
    ],
)
def test_what_is_not_in_the_usual_form_is_not_shown(part: str, change: Any, why: str) -> None:
    model = make_model("qwen3")

    def changed(_: object, inputs: object, output: Any) -> None:
        if output.get(part) is not None:
            output[part] = change(output[part])

    model.register_forward_hook(changed)
    data = explained(model)[1]
    assert data["left_out"] == [why]
    if part == "attentions":
        assert (data["heads"], data["attention"]) == (0, None)
        assert all(group["lens"] for group in data["groups"])
        assert len(data["equality"]) == 5
    else:
        assert data["heads"] == 4
        assert not any(group["lens"] for group in data["groups"])
        assert data["equality"] == {}


def test_readouts_that_are_not_the_models_answer_are_not_shown() -> None:
    """Here logits depend on more than what the final norm gets: on the number of tokens."""
    model = make_model("qwen3")

    def shifted(_: object, inputs: object, options: Any, output: Any) -> None:
        if options["input_ids"].shape[1] == model.config.num_hidden_layers:
            output.logits = output.logits.flip(-1)

    model.register_forward_hook(shifted, with_kwargs=True)
    data = explained(model)[1]
    why = "Readouts: what its final norm gets does not make the model's logits."
    assert data["left_out"] == [why]
    assert not any(group["lens"] for group in data["groups"])
    assert len(data["equality"]) == 5


# The command line.


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mistral")
    make_model("mistral").save_pretrained(folder)
    make_reader().save_pretrained(folder)
    return folder


def test_the_command_writes_the_page_and_prints_the_difference(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output, figure = tmp_path / "page.html", tmp_path / "mask.svg"
    command = ("explain", "--model", f"transformers:{folder}", *Q, "--trials", 2)
    status, out, err = run(capsys, *command, "-o", output, "--figure", figure)
    assert (status, err) == (0, "")
    assert "packed and separate hidden states differ by at most " in out
    assert "Attention weights" not in out  # it loads the model with eager attention
    assert "Which is a bird?" in output.read_text(encoding="utf-8")
    assert figure.is_file()
    status, out, err = run(capsys, *command, "-o", output, "--json")
    summary = json.loads(out)
    assert (status, err) == (0, "")
    assert summary["bitwise"].keys() == summary["apart"].keys() == {"dense", "tree"}
    assert max(summary["apart"].values()) < 1e-5
    assert summary["left_out"] == []


@pytest.mark.parametrize(
    ("source", "question", "part"),
    [("none", "Which?", "the library cannot load it"), ("", "x" * 1500, "positions for 1024")],
)
def test_what_it_cannot_do_is_one_line(
    folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    source: str,
    question: str,
    part: str,
) -> None:
    options = ("--question", question, "--choice", "a", "--choice", "b", "-o", tmp_path / "p.html")
    result = run(capsys, "explain", "--model", f"transformers:{folder / source}", *options)
    assert_one_line(*result, [part])
    assert not (tmp_path / "p.html").exists()
