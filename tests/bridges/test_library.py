"""How a model of the transformers library runs prompts: each engine gives the separate numbers, or
is refused."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

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
    "llama4_text": ("dense", "tree"),
    "gpt2": ("dense", "tree"),
    "gpt_neo": ("tree",),
    "mpt": ("tree",),
    "bloom": ("tree",),
    "mamba": (),
}
WINDOWS = ("window", "chunk", "index_window")
NO_LIMIT = {"max_position_embeddings": None}
NO_WINDOW = dict.fromkeys(WINDOWS)


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


@pytest.mark.parametrize(
    ("family", "more", "facts"),
    [
        ("qwen3", {}, {"max_position_embeddings": 1024, "attention": "eager"}),
        ("mpt", {**NO_LIMIT, "max_seq_len": 77}, {"max_position_embeddings": 77}),
        ("mamba", NO_LIMIT, {"max_position_embeddings": 2**20}),
        ("mistral", {}, {"window": 13}),
        ("mistral", {"sliding_window": None}, {}),
        ("qwen2", {"sliding_window": 13, "use_sliding_window": False}, {}),
        ("gemma3_text", {}, {"window": 13}),
        ("gemma3_text", {"layer_types": ["full_attention"] * 3}, {}),
        ("llama4_text", {}, {"chunk": 13}),
        ("llama4_text", {"layer_types": ["full_attention"] * 3}, {}),
        ("gpt_neo", {}, {"index_window": 13}),
        ("gpt_neo", {"window_size": 1}, {"index_window": 1}),
        ("gpt_neo", {"window_size": 0}, {}),
    ],
)
def test_windows_and_positions_are_those_that_the_config_means(
    family: str, more: dict[str, Any], facts: dict[str, Any]
) -> None:
    """A size that no layer uses is no window."""
    found = make_lm(family, **more).library.config
    expected = {**NO_WINDOW, **facts}
    assert {name: getattr(found, name) for name in expected} == expected


def test_a_model_whose_attention_is_not_named_has_the_eager_one() -> None:
    model = make_model("qwen3")
    model.config._attn_implementation = None
    assert from_transformers(model, make_reader()).library.config.attention == "eager"
    assert make_lm("qwen3", "sdpa").library.config.attention == "sdpa"


@pytest.mark.parametrize(
    ("family", "masks"),
    [
        ("gemma3_text", {"sliding_attention": "window", "full_attention": "all"}),
        ("llama4_text", {"chunked_attention": "chunk", "full_attention": "all"}),
    ],
)
def test_each_kind_of_layer_gets_the_mask_of_its_own_window(
    family: str, masks: dict[str, str]
) -> None:
    """In positions, not in places of the packed sequence."""
    library, layout = make_lm(family).library, pack([*range(1, 21)], [[3] * 9, [4] * 7])
    rows, columns = layout.positions[:, None], layout.positions[None]
    visible = {
        "all": layout.mask,
        "window": layout.mask & (rows - columns < 13),
        "chunk": layout.mask & (rows // 13 == columns // 13),
    }
    made = library._masks(layout, windows=True)
    assert {kind: (mask[0, 0] == 0).tolist() for kind, mask in made.items()} == {
        kind: visible[name].tolist() for kind, name in masks.items()
    }
    plain = library._masks(layout, windows=False)
    assert torch.equal(plain[0, 0] == 0, layout.mask)


def test_a_window_by_index_may_be_as_long_as_the_packed_sequence_and_no_longer() -> None:
    lm, prefix = make_lm("gpt_neo"), [*range(1, 8)]
    fits, long = ([*prefix], [[8, 9], [10, 11, 12, 13]]), (prefix, [[8, 9, 10], [11, 12, 13, 14]])
    assert len(pack(*fits).tokens) == 13
    logits = layout_logits(lm, pack(*fits).replace(positions=torch.arange(13)))
    assert logits.shape == (2, 288)
    with pytest.raises(InputError, match="own window of 13 is by index, and there are 14 packed"):
        layout_logits(lm, pack(*long))


def test_a_packed_sequence_whose_mask_does_not_fit_in_memory_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lm = make_lm("qwen3")
    monkeypatch.setattr("minise.engines.free_bytes", lambda device: 100)
    with pytest.raises(InputError, match="11 packed tokens need a mask"):
        layout_logits(lm, pack([*range(7)], [[8, 9], [10, 11]]))


@pytest.mark.parametrize("engine", ["separate", "dense", "tree", "plain"])
def test_the_library_keeps_a_cache_for_the_prefix_only_and_gets_masks_of_its_own_dtype(
    engine: str,
) -> None:
    lm = from_transformers(make_model("qwen3").to(torch.bfloat16), make_reader())
    calls: list[dict[str, Any]] = []
    lm.library.check("dense"), lm.library.check("tree")
    lm.library.network.register_forward_pre_hook(
        lambda _, inputs, options: calls.append(options), with_kwargs=True
    )
    minise.branch_logits(lm, [0, 5, 6], [[8, 9], [7, 3]], engine)
    cached = {"separate": [False, False], "dense": [False], "tree": [True, True]}
    cached["plain"] = cached["dense"]  # the same call
    assert [call["use_cache"] for call in calls] == cached[engine]
    if engine == "dense":
        assert calls[0]["attention_mask"].dtype == torch.bfloat16


def test_rounding_is_what_changes_of_the_last_bits_of_the_embedding_explain() -> None:
    library, rows = make_lm("qwen3").library, list[torch.Tensor]()
    library.embedding.weight.data.fill_(1.0)
    norm = library.network.model.layers[0].input_layernorm
    norm.register_forward_pre_hook(lambda _, inputs: rows.append(inputs[0]))
    eps = torch.finfo(torch.float32).eps
    assert eps < library.rounding([5, 6, 7]) < 1000 * eps
    library.alone([5, 6, 7])
    assert [sorted(set(row.flatten().tolist())) for row in rows] == [
        [1.0], *[[1 - eps, 1 + eps]] * 3, [1.0],
    ]  # fmt: skip


def test_rounding_is_four_times_the_farthest_of_three_changes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And at least four times the last bit of float32."""
    library, eps = make_lm("qwen3").library, torch.finfo(torch.float32).eps
    for shifts, farthest in (([1e-3, 3e-3, 2e-3], 3e-3), ([0.0, 0.0, 1e-9], eps)):
        measured = Mock(side_effect=shifts)
        monkeypatch.setattr("minise.bridges.library.relative", measured)
        assert library.rounding([5, 6, 7]) == 4 * farthest
        assert measured.call_count == 3


def test_an_engine_is_tried_on_branches_of_different_lengths_behind_a_prefix() -> None:
    prefix, branches, logits, most = make_lm("qwen3").library._trial
    lengths = [len(branch) for branch in branches]
    assert len(prefix) > 13  # as long as the windows of the tests
    assert 1 in lengths
    assert len({*lengths}) == len(lengths) == len(logits) >= 4
    assert 0 < most < 1e-3


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
    for engine in ("separate", "dense", "tree", "plain"):
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
    for tokens in (50, 1):  # a few in a batch, and one
        monkeypatch.setattr("minise.bridges.library.TOKENS_PER_BATCH", tokens)
        assert (minise.branch_logits(lm, prefix, branches, "tree") - whole).abs().max() <= 1e-4


def test_nothing_of_the_model_is_changed(question: Question) -> None:
    model = make_model("gemma3_text")
    before = {name: value.clone() for name, value in model.state_dict().items()}
    lm = from_transformers(model, make_reader())
    minise.self_ensemble(lm, question, group_size=2, trials=2, engine="dense")
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not model.training
    assert [*map(id, lm.decoder.parameters())] == [*map(id, model.parameters())]


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
        with pytest.raises(
            InputError, match=r".: this needs minise's own decoder; load it by minise\.load$"
        ):
            run_it()


def test_what_python_itself_looks_up_is_simply_missing() -> None:
    """`copy`, `pickle` and notebooks ask for such names, and go on without them."""
    decoder = make_lm("qwen3").decoder
    for name in ("__deepcopy__", "__no_such_name__"):
        assert not hasattr(decoder, name)
