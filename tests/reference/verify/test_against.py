"""The decoder is held against minise/definition.py: right ones pass in every dtype, and of a wrong
one the first layer and part that differ are named. Packed against separate sees none of these."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from minise import Decoder, rope
from minise import model as model_module
from minise.attention import Chunk
from minise.model import MLP, Attention, Block, RMSNorm
from minise.verify import against
from minise.verify.against import LIMITS, hold
from minise.verify.comparison import PACKED, in_float64
from minise.verify.verify import verify
from tests.reference.support.tiny import ALL_FAMILIES
from tests.reference.verify.cases import SHORT, Models, each_dtype

Patch = pytest.MonkeyPatch


@each_dtype
@pytest.mark.parametrize("family", ALL_FAMILIES)
def test_a_right_decoder_is_far_within_the_limit(
    model: Models, family: str, dtype: torch.dtype
) -> None:
    lm = model(family, dtype)
    held = hold(lm, SHORT)
    assert held.prompts == len(SHORT.branches)
    assert held.passed
    assert held.first is None
    assert held.most <= LIMITS[dtype] / 3
    with in_float64(lm.decoder):
        assert hold(lm, SHORT).most <= 1e-12


def swiglu(self: MLP, x: Tensor) -> Tensor:
    return self.down_proj(F.silu(self.up_proj(x)) * self.gate_proj(x))


def gelu(self: MLP, x: Tensor) -> Tensor:
    return self.down_proj(F.gelu(self.gate_proj(x)) * self.up_proj(x))


def interleaved(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    wide = x.to(cos.dtype)
    turned = torch.stack([-wide[..., 1::2], wide[..., ::2]], dim=-1).flatten(-2)
    return (wide * cos + turned * sin).to(x.dtype)


def other_way(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    return rotated(x, cos, -sin)


rotated = rope.rotate


def no_final_norm(patch: Patch) -> None:
    real = Decoder.run

    def run(self: Decoder, *given: Any, **named: Any) -> Tensor:
        norm = self.model.norm
        self.model.norm = torch.nn.Identity()
        try:
            return real(self, *given, **named)
        finally:
            self.model.norm = norm

    patch.setattr(Decoder, "run", run)


def in_layer(layer: int, change: Callable[[Any], None]) -> Callable[[Patch], None]:
    """A change of one layer of every decoder, while it runs."""

    def plant(patch: Patch) -> None:
        real = Decoder.run

        def run(self: Decoder, *given: Any, **named: Any) -> Tensor:
            hook = self.model.layers[layer].register_forward_pre_hook(
                lambda block, _: change(block)
            )
            try:
                return real(self, *given, **named)
            finally:
                hook.remove()

        patch.setattr(Decoder, "run", run)

    return plant


def wider_epsilon(block: Block) -> None:
    block.post_attention_layernorm.eps = 1e-2


def norm_of_mean(self: RMSNorm, x: Tensor) -> Tensor:
    return self.weight * F.layer_norm(x, x.shape[-1:], eps=self.eps)


def no_residual(self: Block, x: Tensor, angles: Any, attend: Any, rows: Any) -> Tensor:
    x = self.self_attn(self.input_layernorm(x), angles, attend, rows)
    return x + self.mlp(self.post_attention_layernorm(x))


def half_scores(self: Chunk, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return real_read(self, q / 2, k, v)


real_read = Chunk.read


def values_of_keys(self: Attention, *given: Any) -> Tensor:
    self.v_proj, kept = self.k_proj, self.v_proj
    try:
        return real_attention(self, *given)
    finally:
        self.v_proj = kept


real_attention = Attention.forward

# A fault that all engines share, and what `verify` says of it.
SHARED: dict[str, tuple[Callable[[Patch], None], str]] = {
    "gate and up are swapped": (
        lambda patch: patch.setattr(MLP, "swiglu", swiglu),
        "layer 0, MLP (down_proj)",
    ),
    "another activation": (
        lambda patch: patch.setattr(MLP, "swiglu", gelu),
        "layer 0, MLP (down_proj)",
    ),
    "rotary pairs are interleaved": (
        lambda patch: patch.setattr(model_module, "rotate", interleaved),
        "layer 0, rotation of queries",
    ),
    "rotation the other way": (
        lambda patch: patch.setattr(model_module, "rotate", other_way),
        "layer 0, rotation of queries",
    ),
    "no final norm": (no_final_norm, "output (logits)"),
    "another epsilon in layer 1": (
        in_layer(1, wider_epsilon),
        "layer 1, norm before the MLP",
    ),
    "a norm that subtracts the mean": (
        lambda patch: patch.setattr(RMSNorm, "forward", norm_of_mean),
        "layer 0, norm before attention",
    ),
    "a layer without its residual": (
        lambda patch: patch.setattr(Block, "forward", no_residual),
        "layer 0, ",
    ),
    "scores by another scale": (
        lambda patch: patch.setattr(Chunk, "read", half_scores),
        "layer 0, attention",
    ),
    "values read with the keys' weights": (
        lambda patch: patch.setattr(Attention, "forward", values_of_keys),
        "layer 0, ",
    ),
}


@pytest.mark.parametrize("name", SHARED)
def test_of_a_fault_that_all_engines_share_the_first_part_is_named(
    model: Models, monkeypatch: Patch, name: str
) -> None:
    """A model in bfloat16 is held in float64, too."""
    plant, said = SHARED[name]
    plant(monkeypatch)
    report = verify(model("llama", torch.bfloat16), SHORT)
    assert all(map(report.same, PACKED))  # the engines agree with one another
    assert str(report.failure).startswith(f"the decoder is not its definition, in float64: {said}")
    assert "prompt 1, token " in str(report.failure)


def test_a_part_that_did_not_run_is_named(model: Models, monkeypatch: Patch) -> None:
    no_final_norm(monkeypatch)
    report = verify(model("llama"), SHORT)
    assert str(report.failure).endswith("final norm did not run")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_fault_of_one_dtype_alone_is_found_there(
    model: Models, monkeypatch: Patch, dtype: torch.dtype
) -> None:
    """In float64 nothing is wrong with it."""
    right = MLP.swiglu

    def wrong_if_narrow(self: MLP, x: Tensor) -> Tensor:
        return right(self, x) if x.dtype == torch.float64 else gelu(self, x)

    monkeypatch.setattr(MLP, "swiglu", wrong_if_narrow)
    report = verify(model("llama", dtype), SHORT)
    assert [held.passed for held in report.held] == [True, False]
    named = str(dtype).removeprefix("torch.")
    assert f"not its definition, in {named}: layer 0, MLP (down_proj)" in str(report.failure)


def test_a_nan_is_a_difference(model: Models, monkeypatch: Patch) -> None:
    monkeypatch.setattr(MLP, "swiglu", lambda self, x: x * torch.nan)
    held = hold(model("llama"), SHORT)
    assert not held.passed
    assert against.in_words(held.first.part if held.first else "") == "layer 0, MLP"


def test_without_a_definition_nothing_is_claimed_of_the_decoder(
    model: Models, monkeypatch: Patch
) -> None:
    from minise.verify.words import as_text

    monkeypatch.setattr(MLP, "swiglu", swiglu)
    lm = replace(model("llama"), definition=None)
    report = verify(lm, SHORT)
    assert report.passed
    text = as_text("mine", "float64", report)
    assert "No definition of this decoder is known" in text
    assert text.endswith("no group sees another; the decoder itself was held against nothing")


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize(
    "order",
    [[0, 1], [1, 2, 0], [0, 1, 1]],
    ids=["without the last", "another order", "one twice"],
)
def test_the_layers_that_run_must_be_those_of_the_definition(
    model: Models, monkeypatch: Patch, order: list[int], dtype: torch.dtype
) -> None:
    """All engines leave the same layer out, so they agree."""
    real_run, real_iter = Decoder.run, torch.nn.ModuleList.__iter__
    running = []

    def run(self: Decoder, *given: Any, **named: Any) -> Tensor:
        running.append(True)
        try:
            return real_run(self, *given, **named)
        finally:
            running.pop()

    def iterate(self: torch.nn.ModuleList) -> Any:
        layers = list(real_iter(self))
        return iter([layers[number] for number in order] if running else layers)

    lm = model("llama", dtype)
    monkeypatch.setattr(Decoder, "run", run)
    monkeypatch.setattr(torch.nn.ModuleList, "__iter__", iterate)
    assert not hold(lm, SHORT).passed
