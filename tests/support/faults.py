r"""Faults that such code really has, each planted on purpose: a pytest plugin.

    MINISE_FAULT="swapped norms" python -m pytest -p tests.support.faults \
        tests/claims/test_goldens.py

A fault wraps a function or class of the package from the outside and says nothing about how it is
written inside: a fork that renames a variable, or writes a formula in another way, keeps them all.
It is planted where the function is defined, before anything else imports it.
"""

from __future__ import annotations

import functools
import importlib
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

FAULTS: dict[str, tuple[str, str, Callable[..., Any]]] = {}


def fault(name: str, module: str, attribute: str) -> Callable[..., Any]:
    """Register what `minise.module`'s attribute becomes, made from what it is."""

    def register(make: Callable[..., Any]) -> Callable[..., Any]:
        FAULTS[name] = (f"minise.{module}", attribute, make)
        return make

    return register


def plant(name: str) -> None:
    """Plant a fault."""
    module_name, path, make = FAULTS[name]
    owner: Any = importlib.import_module(module_name)
    *parts, last = path.split(".")
    for part in parts:
        owner = getattr(owner, part)
    setattr(owner, last, make(getattr(owner, last)))


def swapped(*names: str) -> Callable[..., Any]:
    """A forward in which two submodules have changed places."""

    def make(real: Any) -> Any:
        @functools.wraps(real)
        def forward(self: Any, *arguments: Any, **named: Any) -> Any:
            modules = [getattr(self, name) for name in names]
            for name, module in zip(names, reversed(modules), strict=True):
                setattr(self, name, module)
            try:
                return real(self, *arguments, **named)
            finally:
                for name, module in zip(names, modules, strict=True):
                    setattr(self, name, module)

        return forward

    return make


def without_bias(projection: str) -> Callable[..., Any]:
    def make(real: Any) -> Any:
        def forward(self: Any, *arguments: Any, **named: Any) -> Any:
            linear = getattr(self, projection)
            bias, linear.bias = linear.bias, None
            try:
                return real(self, *arguments, **named)
            finally:
                linear.bias = bias

        return forward

    return make


fault("swapped norms", "model", "Block.forward")(
    swapped("input_layernorm", "post_attention_layernorm")
)
fault("dropped key bias", "model", "Attention.forward")(without_bias("k_proj"))
fault("dropped value bias", "model", "Attention.forward")(without_bias("v_proj"))


@fault("key heads tiled instead of repeated", "attention", "masked_attention")
def tiled_keys(real: Any) -> Any:
    def attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        repeats = q.shape[2] // k.shape[2]
        v = v.repeat_interleave(repeats, dim=2)
        return real(q, k.repeat(1, 1, repeats, 1), v, mask)

    return attention


@fault("value heads tiled instead of repeated", "attention", "masked_attention")
def tiled_values(real: Any) -> Any:
    def attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        repeats = q.shape[2] // k.shape[2]
        k = k.repeat_interleave(repeats, dim=2)
        return real(q, k, v.repeat(1, 1, repeats, 1), mask)

    return attention


@fault("inverted mask", "attention", "masked_attention")
def inverted_mask(real: Any) -> Any:
    def attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        hidden = ~mask
        return real(q, k, v, hidden | ~hidden.any(dim=-1, keepdim=True))  # no empty softmax

    return attention


@fault("wrong epsilon", "model", "RMSNorm.__init__")
def wrong_epsilon(real: Any) -> Any:
    return lambda self, size, eps: real(self, size, 1e-5)


@fault("norms narrowed to float32", "model", "RMSNorm.forward")
def narrow_norm(real: Any) -> Any:
    return lambda self, x: real(self, x.float()).to(x.dtype)


@fault("windows by index", "model", "Decoder.forward")
def windows_by_index(real: Any) -> Any:
    def forward(self: Any, tokens: Tensor, positions: Tensor, mask: Tensor) -> Tensor:
        config, windows = self.config, set(self.config.sliding_windows)
        if len(windows) > 1 or None in windows:
            return real(self, tokens, positions, mask)
        index = torch.arange(mask.shape[-1])
        near = index[:, None] - index < windows.pop()
        self.config = replace(config, sliding_windows=(None,) * config.num_hidden_layers)
        try:
            return real(self, tokens, positions, mask & near)
        finally:
            self.config = config

    return forward


@fault("a window of one more", "model", "Decoder.__init__")
def wider_windows(real: Any) -> Any:
    def init(self: Any, config: Any) -> None:
        wider = tuple(None if w is None else w + 1 for w in config.sliding_windows)
        real(self, replace(config, sliding_windows=wider))

    return init


@fault("interleaved rotary pairs", "rope", "cos_sin")
def interleaved(real: Any) -> Any:
    def cos_sin(*arguments: Any) -> tuple[Tensor, Tensor]:
        cos, sin = (x.chunk(2, dim=-1)[0].repeat_interleave(2, dim=-1) for x in real(*arguments))
        return cos, sin

    return cos_sin


@fault("rotation the other way", "rope", "rotate")
def turned_back(real: Any) -> Any:
    return lambda x, cos, sin: real(x, cos, -sin)


@fault("angles in the model's dtype", "rope", "cos_sin")
def narrow_angles(real: Any) -> Any:
    from minise.rope import inverse_frequencies

    def cos_sin(config: Any, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        angle = positions[..., None].to(dtype) * inverse_frequencies(
            config, dtype, positions.device
        )
        angle = torch.cat([angle, angle], dim=-1)
        return angle.cos(), angle.sin()

    return cos_sin


@fault("positions not re-encoded", "layout", "pack")
def plain_positions(real: Any) -> Any:
    def pack(*arguments: Any, **named: Any) -> Any:
        layout = real(*arguments, **named)
        layout.__dict__["positions"] = torch.arange(len(layout.tokens))
        return layout

    return pack


@fault("no block mask", "layout", "Tree.mask")
def no_block_mask(real: Any) -> Any:
    from minise.layout import causal_mask

    return property(lambda self: causal_mask(len(self.tokens)))


@fault("the paper's misprinted index_j", "layout", "pack")
def misprinted_ends(real: Any) -> Any:
    def pack(prefix: Any, branches: Any, tree: bool = False) -> Any:
        layout = real(prefix, branches, tree)
        before = torch.tensor([max(len(prefix) - 1, 0)])
        layout.__dict__["ends"] = torch.cat([before, layout.ends[:-1]])
        return layout

    return pack


@fault("a flat layout that merges", "layout", "pack")
def always_merged(real: Any) -> Any:
    return lambda prefix, branches, tree=False: real(prefix, branches, tree=True)


@fault("a tree that forgets windows", "exact.attention", "tree_calls")
def no_windows(real: Any) -> Any:
    def calls(tree: Any, windows: Any, device: Any) -> Any:
        with_windows = real(tree, (*windows, None), device)
        return [replace(c, masks=dict.fromkeys(c.masks, c.masks[None])) for c in with_windows]

    return calls


@fault("a tree that reads what comes after", "exact.attention", "tree_calls")
def reads_on(real: Any) -> Any:
    def calls(*arguments: Any) -> Any:
        return [
            replace(c, masks={w: torch.ones_like(m) for w, m in c.masks.items()})
            for c in real(*arguments)
        ]

    return calls


@fault("query heads of other key/value heads", "attention", "masked_attention")
def mixed_heads(real: Any) -> Any:
    def attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        heads, groups = q.shape[2], k.shape[2]
        mixed = torch.arange(heads).view(heads // groups, groups).T.flatten()
        return real(q[:, :, mixed], k, v, mask)

    return attention


@fault("null option outside the softmax", "method", "mean_answer")
def null_outside(real: Any) -> Any:
    def answer(plan: Any, logits: Any) -> Any:
        groups = zip(logits, plan.groups.flat, strict=True)
        return real(plan, [row[: len(group)] for row, group in groups])

    return answer


@fault("the mean (Eq. 2) read literally", "method", "combine")
def literal_mean(real: Any) -> Any:
    def combine(num_choices: int, groups: Any) -> Any:
        answer = real(num_choices, groups)
        weight = torch.zeros(num_choices, dtype=torch.float64)
        for group in groups:
            weight[list(group.choices)] += group.weight
        return replace(answer, scores=answer.scores * weight / len(groups))

    return combine


@fault("labels of another order", "method", "label_logits")
def sorted_labels(real: Any) -> Any:
    def label_logits(lm: Any, plan: Any, *arguments: Any) -> Any:
        prompts = [replace(p, label_ids=sorted(p.label_ids)) for p in plan.prompts]
        return real(lm, replace(plan, prompts=prompts), *arguments)

    return label_logits


def run_planted(name: str, test: str, output: str) -> None:
    """Run one test with a fault planted, in a process of its own; what it prints goes to a file."""
    with open(output, "w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    plant(name)
    # Hypothesis would be imported at a failure, which takes longer than the test.
    fast = ("-p", "no:cacheprovider", "-p", "no:hypothesispytest")
    sys.exit(pytest.main(["-x", "-q", *fast, test]))


if "MINISE_FAULT" in os.environ:
    plant(os.environ["MINISE_FAULT"])
