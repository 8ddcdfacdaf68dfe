"""The guard finds planted faults in models of the reference library, and no fault where none is."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import minise
from minise import InputError
from minise.layout import causal_mask
from minise.verify.guard import Mismatch, guard

transformers = pytest.importorskip("transformers")

LENGTHS = [5, 9, 4, 7]
T = sum(LENGTHS)
SIZES = {
    "llama": {"num_key_value_heads": 2},
    "qwen3": {"num_key_value_heads": 2, "head_dim": 8},
    "gpt2": {"n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 512},
}
IDS = torch.randint(5, 290, (1, T), generator=torch.Generator().manual_seed(0))
PLACES = torch.cat([torch.arange(n) for n in LENGTHS])[None]
OF = torch.arange(4).repeat_interleave(torch.tensor(LENGTHS))
BLOCKS = (causal_mask(T) & (OF[:, None] == OF))[None, None]
RIGHT = {"input_ids": IDS, "position_ids": PLACES, "attention_mask": BLOCKS, "use_cache": False}


def model(kind: str, dtype: torch.dtype = torch.float32) -> Any:
    """Every parameter is random."""
    shape = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 3}
    shape |= {"num_attention_heads": 4, "vocab_size": 300} | SIZES[kind]
    config = transformers.AutoConfig.for_model(kind, **shape)
    made = transformers.AutoModelForCausalLM.from_config(config)
    draw = torch.Generator().manual_seed(1)
    for one in made.parameters():
        one.data = torch.randn(one.shape, generator=draw) * 0.2 + (one.data == 1)
    return made.to(dtype).eval()


def found(made: Any, call: dict[str, Any], **more: Any) -> list[Mismatch]:
    """What a guard finds in one call. The output is untouched."""
    seen: list[Mismatch] = []
    without = made(**call).logits
    watch = guard(made, seen.append, **more)
    assert torch.equal(made(**call).logits, without)
    assert watch.compared > 0
    watch.remove()
    return seen


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kind", SIZES)
def test_right_rows_pass_and_a_lost_mask_does_not(kind: str, dtype: torch.dtype) -> None:
    made = model(kind, dtype)
    added = torch.where(BLOCKS, 0.0, torch.finfo(dtype).min).to(dtype)
    padded = {"input_ids": IDS.repeat(2, 1), "attention_mask": torch.ones(2, T).long()}
    padded["attention_mask"][1, :4] = 0
    padded["position_ids"] = (padded["attention_mask"].cumsum(1) - 1).clamp(min=0)
    for right in ({}, {"attention_mask": added}, {"attention_mask": None}, padded):
        assert found(made, RIGHT | right) == []
    (lost,) = found(made, RIGHT | {"attention_mask": torch.ones_like(IDS)})
    assert lost.apart > 2 * lost.allowed
    assert "there is no block mask" in lost.words
    assert lost.report.findings[0].what == "mask"


@pytest.mark.parametrize(
    ("kind", "fault", "words"),
    [
        ("gpt2", {"position_ids": None}, "positions run on"),
        ("gpt2", {"position_ids": PLACES + (OF > 0)}, "are off by one"),
        ("llama", {"attention_mask": BLOCKS.roll(1, -1) | BLOCKS}, "mask: token"),
        ("llama", {"position_ids": PLACES + (OF > 0), "attention_mask": None}, "mask: token"),
        ("llama", {"position_ids": PLACES * 2}, "no known mistake"),
    ],
)
def test_positions_and_borders_that_are_wrong_are_found(
    kind: str, fault: dict[str, Any], words: str
) -> None:
    (one,) = found(model(kind), RIGHT | fault)
    assert words in one.words


def test_a_path_that_ignores_the_mask_is_found_although_the_row_is_right(monkeypatch) -> None:
    """As a flash kernel does to which the mask is not handed on."""
    real = torch.nn.functional.scaled_dot_product_attention

    def flash(q: Tensor, k: Tensor, v: Tensor, attn_mask: Any = None, **more: Any) -> Tensor:
        return real(q, k, v, **more | {"is_causal": True})

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", flash)
    (one,) = found(model("llama"), RIGHT)
    assert one.report.equal
    assert one.words.endswith("its attention does not go by it")


def test_what_nothing_in_the_call_tells_is_told_by_documents() -> None:
    lost = RIGHT | {"position_ids": None, "attention_mask": None}
    made = model("llama")
    watch = guard(made, "raise")
    made(**lost)
    assert watch.compared == 0  # it waits for something packed
    watch.remove()
    (one,) = found(made, lost, documents=lambda call: [LENGTHS])
    assert "there is no block mask" in one.words


def test_a_mismatch_warns_raises_or_falls_back() -> None:
    made, wrong = model("llama"), RIGHT | {"attention_mask": torch.ones_like(IDS)}
    watch = guard(made)
    with pytest.warns(UserWarning, match="packed is not equal to separate"):
        made(**wrong)
    watch.remove()
    watch = guard(made, "raise")
    with pytest.raises(RuntimeError, match="rounding in float32 explains"):
        made(**wrong)
    watch.remove()
    right = made(**RIGHT).logits

    def fall_back(mismatch: Mismatch) -> Any:
        wrong["attention_mask"] = BLOCKS
        return made(**RIGHT) if mismatch.again() is not None else None

    watch = guard(made, fall_back)
    assert torch.equal(made(**wrong).logits, right)
    watch.remove()
    watch = guard(made, "raise")
    with pytest.warns(UserWarning, match="nothing was compared: the model gives no logits"):
        made(**RIGHT, logits_to_keep=1)
    watch.remove()
    with pytest.raises(InputError, match="give warn, raise"):
        guard(made, "stop")
    assert minise.guard is guard


def test_it_looks_again_when_rows_grow_and_only_then() -> None:
    made, seen = model("llama"), []
    watch = guard(made, seen.append)
    short = {name: one[..., :9] for name, one in RIGHT.items() if name != "use_cache"}
    short["attention_mask"] = BLOCKS[..., :9, :9]
    counts = []
    for call in (short, short, RIGHT, short, RIGHT):
        made(**call | {"use_cache": False})
        counts.append((watch.longest, watch.compared))
    assert [one[0] for one in counts] == [9, 9, T, T, T]
    assert counts[0] == counts[1] != counts[2] == counts[3] == counts[4]
    assert seen == []


SLOW = [pytest.param(way, marks=pytest.mark.slow) for way in ("after", "in place")]


@pytest.mark.parametrize("way", ["before", *SLOW])
def test_it_works_with_compile_and_gradients_and_changes_nothing(way: str) -> None:
    torch._dynamo.reset()
    made, seen = model("gpt2").train(), []  # which has dropout
    twin = copy.deepcopy(made)
    call = RIGHT | {"labels": IDS, "attention_mask": torch.ones_like(IDS)}
    run: Callable[..., Any] = made
    watched = made
    if way == "in place":
        made.compile(backend="eager")
    elif way == "before":
        run = watched = torch.compile(made, backend="eager")
    guard(watched, seen.append)
    if way == "after":
        run = torch.compile(made, backend="eager")
    gradients = []
    for one, module in ((run, made), (twin, twin)):
        torch.manual_seed(0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            one(**call).loss.backward()
        gradients.append(module.transformer.wte.weight.grad)
    assert torch.allclose(*gradients, rtol=1e-4, atol=1e-6)
    assert len(seen) == 1
    assert all(one.training for one in made.modules())
