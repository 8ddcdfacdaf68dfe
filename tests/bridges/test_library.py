"""How a model of the transformers library runs prompts: each engine gives the separate numbers, or
is refused."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("transformers", reason="the reference library, extra [parity], is missing")

import minise
from minise import InputError, Question, from_transformers
from minise.engines import layout_logits
from minise.layout import pack
from minise.loading.identity import model_identity
from tests.support.bridges import FAMILIES, make_lm, make_model, make_reader, scores

EXACT = {
    "qwen3": ("dense", "tree"),
    "mistral": ("dense", "tree"),
    "gemma3_text": ("dense", "tree"),
    "gpt_oss": ("dense", "tree"),
    "gpt2": ("dense", "tree"),
    "gpt_neo": ("tree",),
    "mpt": ("tree",),
    "bloom": ("tree",),
    "mamba": (),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_an_engine_gives_the_separate_numbers_or_is_refused(
    family: str, question: Question
) -> None:
    """Never other numbers: where positions are by index, or a mask is not taken, one line says
    so."""
    lm = make_lm(family)
    expected = scores(lm, question, "separate")
    for engine in ("dense", "tree"):
        if engine in EXACT[family]:
            assert (scores(lm, question, engine) - expected).abs().max() <= 1e-5
        else:
            with pytest.raises(InputError, match=f"engine {engine} is not exact here") as error:
                scores(lm, question, engine)
            assert "\n" not in str(error.value)


@pytest.mark.parametrize("family", ["qwen3", "mistral", "gemma3_text", "gpt2"])
def test_the_same_under_sdpa_in_bfloat16(family: str, question: Question) -> None:
    model = make_model(family, "sdpa").to(torch.bfloat16)
    lm = from_transformers(model, make_reader())
    prefix, branches = [0, 5, 6, 7] * 4, [[8, 9], [8], [9, 10, 11]]
    expected = minise.branch_logits(lm, prefix, branches, "separate")
    assert expected.dtype == torch.bfloat16
    tree = minise.branch_logits(lm, prefix, branches, "tree")
    packed = layout_logits(lm, pack(prefix, branches))
    for logits in (tree, packed):
        assert (logits - expected).abs().max() <= 0.1 * expected.abs().max()


def test_columns_are_those_of_the_whole_vocabulary() -> None:
    lm = make_lm("qwen3")
    for engine in ("separate", "dense", "tree"):
        whole = minise.branch_logits(lm, [0, 5], [[8, 9], [7]], engine)
        assert whole.shape == (2, 288)
        some = minise.branch_logits(lm, [0, 5], [[8, 9], [7]], engine, columns=[3, 9])
        assert torch.equal(some, whole[:, [3, 9]])


@pytest.mark.parametrize(
    ("prefix", "branches"),
    [([], [[3, 4, 5], [6]]), ([3, 4], [[], [5, 6]]), ([3], [[4]] * 3)],
    ids=["no prefix", "a prompt that is the prefix", "equal prompts"],
)
def test_prompts_at_the_edges(prefix: list[int], branches: list[list[int]]) -> None:
    lm = make_lm("qwen3")
    expected = minise.branch_logits(lm, prefix, branches, "separate")
    for engine in ("dense", "tree"):
        logits = minise.branch_logits(lm, prefix, branches, engine)
        assert (logits - expected).abs().max() <= 1e-4


def test_many_branches_go_behind_the_cache_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    lm = make_lm("gemma3_text")
    prefix, branches = list(range(20)), [[i, i + 1][: 1 + i % 2] for i in range(9)]
    whole = minise.branch_logits(lm, prefix, branches, "tree")
    monkeypatch.setattr("minise.bridges.library.TOKENS_PER_BATCH", 50)
    assert (minise.branch_logits(lm, prefix, branches, "tree") - whole).abs().max() <= 1e-4


def test_nothing_of_the_model_is_changed(question: Question) -> None:
    model = make_model("gemma3_text")
    before = {name: value.clone() for name, value in model.state_dict().items()}
    lm = from_transformers(model, make_reader())
    minise.self_ensemble(lm, question, group_size=2, trials=2, engine="dense")
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not model.training


def test_another_weight_is_another_model() -> None:
    one, other = make_lm("qwen3"), make_model("qwen3")
    assert model_identity(one) == model_identity(from_transformers(other, make_reader()))
    other.model.layers[1].mlp.up_proj.weight.data.add_(1e-3)
    assert model_identity(one) != model_identity(from_transformers(other, make_reader()))


def test_what_needs_our_own_decoder_says_so() -> None:
    lm = make_lm("qwen3")
    for run_it in (
        lambda: minise.generate(lm, ["Hello"], stop=[3]),
        lambda: minise.generate(lm, ["Hello"]),
        lambda: lm.decoder(torch.tensor([1]), torch.tensor([0]), torch.ones(1, 1).bool()),
    ):
        with pytest.raises(InputError, match="needs minise's own decoder"):
            run_it()
