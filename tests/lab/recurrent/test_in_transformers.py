"""Recurrent layers of the transformers library in a pass under a mask: by functions that are
exchanged, asked by a context variable."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from minise import InputError, pack
from minise.engines import separate, tree
from minise.errors import Unsuited
from minise.lab.recurrent import in_transformers
from minise.lab.recurrent.in_transformers import along
from minise.lab.serving import transformers as serving
from minise.lab.serving.transformers import MOST_ERROR, TransformersModel, error_of_packing
from minise.layout import causal_mask
from tests.lab.serving.zoo import PASSES, library, load_tiny_of

# One of each kind of recurrence: Gated DeltaNet, KDA, Mamba-2 beside attention, Mamba, a
# convolution alone, lightning attention, RG-LRU, and a convolution of queries and keys.
KINDS = (
    *("qwen3_5_text", "kimi_linear", "falcon_h1", "falcon_mamba", "lfm2", "minimax"),
    *("recurrent_gemma", "zaya"),
)
BRANCHES = [[7, 8, 9], [7, 9, 11, 4], [3]]
LAYOUT = pack(list(range(5, 45)), BRANCHES, tree=True)
ROW = torch.arange(5, 60)


@pytest.fixture(scope="module")
def lm(tmp_path_factory: pytest.TempPathFactory) -> TransformersModel:
    return load_tiny_of(tmp_path_factory.mktemp("qwen35"), "qwen3_5_text")


def run(lm: TransformersModel) -> torch.Tensor:
    with torch.inference_mode():
        return lm.decoder(LAYOUT.tokens, LAYOUT.positions, LAYOUT.mask, LAYOUT.ends)


def plain(lm: TransformersModel, row: torch.Tensor = ROW) -> torch.Tensor:
    """As the library runs one text."""
    with torch.inference_mode():
        return lm.decoder.model(row[None], use_cache=False).logits[0]


@pytest.mark.parametrize("name", KINDS)
def test_packed_is_what_the_library_gives_for_each_prompt(name: str, tmp_path: Path) -> None:
    lm = load_tiny_of(tmp_path, name)
    for prefix, branches in PASSES:
        expected = torch.stack([plain(lm, torch.tensor(prefix + one))[-1] for one in branches])
        found = lm.with_engine("tree").hidden_at_ends(prefix, branches)
        assert error_of_packing(found, expected) < 1e-4
    assert not lm.packing.given_up  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", KINDS)
def test_by_the_librarys_own_functions_the_packed_row_is_wrong(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So the test above can fail; and the numbers, the second net, find it."""
    lm = load_tiny_of(tmp_path, name)
    alone = separate(lm.decoder, *PASSES[3])
    monkeypatch.setattr(lm.decoder, "recurrent", False)
    masks = lm.decoder.masks_by_kind
    monkeypatch.setattr(lm.decoder, "library_mask", masks)
    assert error_of_packing(tree(lm.decoder, *PASSES[3]), alone) > 0.03
    found = lm.with_engine("tree").hidden_at_ends(*PASSES[3])
    assert torch.equal(found, alone)
    assert lm.packing.given_up


def test_a_layer_that_hides_from_the_hooks_is_found_by_the_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Inkling 2 has a convolution whose weights depend on the token: it is no Conv1d, and calls no
    function that is exchanged."""
    if not hasattr(library, "Inkling2ForCausalLM"):
        pytest.skip("the installed library has no such model")
    monkeypatch.setattr(serving, "unknown_part", lambda model: None)
    lm = load_tiny_of(tmp_path, "inkling2_text")
    monkeypatch.setattr(lm.decoder, "recurrent", True)
    in_transformers.prepare(lm.decoder.model)
    alone = separate(lm.decoder, *PASSES[3])
    assert error_of_packing(tree(lm.decoder, *PASSES[3]), alone) > 0.1
    assert torch.equal(lm.with_engine("tree").hidden_at_ends(*PASSES[3]), alone)
    assert "packed logits are" in capsys.readouterr().err


def test_outside_a_pass_under_a_mask_the_library_runs_as_ever(lm: TransformersModel) -> None:
    before = plain(lm)
    run(lm)
    assert torch.equal(plain(lm), before)


def test_threads_do_not_see_each_others_passes(lm: TransformersModel) -> None:
    packed, text = run(lm), plain(lm)
    wrong = []

    def often(call: Any, expected: torch.Tensor) -> None:
        for _ in range(20):
            if not torch.equal(call(lm), expected):
                wrong.append(call.__name__)

    threads = [
        threading.Thread(target=often, args=(call, expected))
        for call, expected in ((run, packed), (plain, text), (run, packed))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_compiled_code_packs_and_runs_plain_texts(lm: TransformersModel) -> None:
    packed, text = run(lm), plain(lm)
    model = lm.decoder.model
    compiled = torch.compile(model, backend="eager", dynamic=False)
    other = pack(list(range(5, 44)), [[7, 8, 9, 4], [7, 9, 11, 4], [3]], tree=True)
    assert len(other.tokens) == len(LAYOUT.tokens)  # another tree, with the same shapes
    with torch.inference_mode():
        expected = lm.decoder(other.tokens, other.positions, other.mask, other.ends)
        assert torch.allclose(compiled(ROW[None], use_cache=False).logits[0], text)
        for layout, right in ((LAYOUT, packed), (other, expected)):
            masks = lm.decoder.library_mask(layout.positions, layout.mask)
            with along(model, layout.mask):
                found = compiled(
                    layout.tokens[None],
                    position_ids=layout.positions[None],
                    attention_mask=masks,
                    use_cache=False,
                ).logits[0, layout.ends]
            assert error_of_packing(found, right) < 1e-4
        assert torch.allclose(compiled(ROW[None], use_cache=False).logits[0], text)


def test_a_fast_kernel_that_is_installed_is_not_used_for_a_tree(
    lm: TransformersModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would stand where the library's own function stands."""
    expected = run(lm)
    code = in_transformers.code_of(lm.decoder.model)
    called = []
    for module in code:
        for name in ("causal_conv1d_fn", "torch_chunk_gated_delta_rule"):
            either = getattr(module, name, None)
            if either is not None:
                kernel = in_transformers.by_context(
                    lambda *_, **__: called.append("fast"), in_transformers.FUNCTIONS[name]
                )
                monkeypatch.setattr(module, name, kernel)
    assert torch.equal(run(lm), expected)
    assert called == []


def test_a_layer_that_a_kernel_replaced_is_an_error_and_is_asked_separately(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lm = load_tiny_of(tmp_path, "qwen3_5_text")
    layer = lm.decoder.model.model.layers[0].linear_attn
    layer.forward = lambda hidden_states, **_: hidden_states
    with pytest.raises(Unsuited, match="went past the mask: no convolution, scan of ours"):
        tree(lm.decoder, *PASSES[3])
    lm.with_engine("tree").hidden_at_ends(*PASSES[3])
    assert "is asked by separate prompts, because" in capsys.readouterr().err


def test_what_fuses_a_layer_in_training_is_refused_in_one_line() -> None:
    fused = in_transformers.FUNCTIONS["mamba2_split_conv1d_scan_combined"]
    with pytest.raises(RuntimeError, match=r"knows no paths; call model.eval\(\)"):
        fused(None)


def test_gradients_of_a_packed_pass_are_those_of_the_prompts(tmp_path: Path) -> None:
    lm = load_tiny_of(tmp_path, "qwen3_5_text")
    model = lm.decoder.model.requires_grad_()
    parameters = list(model.parameters())
    losses = []
    for path in LAYOUT.paths():
        logits = model(LAYOUT.tokens[path][None], use_cache=False).logits[0, -1]
        losses.append(logits.log_softmax(-1)[5])
    alone = torch.autograd.grad(torch.stack(losses).sum(), parameters)
    logits_GV = lm.decoder(LAYOUT.tokens, LAYOUT.positions, LAYOUT.mask, LAYOUT.ends)
    packed = torch.autograd.grad(logits_GV.log_softmax(-1)[:, 5].sum(), parameters)
    for mine, expected in zip(packed, alone, strict=True):
        size = float(expected.abs().max().clamp(min=1e-9))
        assert float((mine - expected).abs().max()) < 1e-3 * size


def test_a_mask_that_is_no_tree_is_refused(lm: TransformersModel) -> None:
    window = causal_mask(9) & ~causal_mask(9).tril(-4)
    with pytest.raises(InputError, match="need the mask of a tree"):
        lm.decoder(torch.arange(9), torch.arange(9), window)


APART_IN_BFLOAT16 = ("jamba", "zamba", "zamba2", "inkling_text")


@pytest.mark.parametrize("name", ["qwen3_5_text", *APART_IN_BFLOAT16])
def test_in_bfloat16_what_rounding_moves_too_far_stays_separate(name: str, tmp_path: Path) -> None:
    lm = load_tiny_of(tmp_path, name, dtype="bfloat16").with_engine("tree")
    assert isinstance(lm, TransformersModel)
    for prompts in PASSES:
        error = error_of_packing(lm.hidden_at_ends(*prompts), separate(lm.decoder, *prompts))
        assert error <= MOST_ERROR[torch.bfloat16]
    assert lm.packing.given_up == (name in APART_IN_BFLOAT16)
