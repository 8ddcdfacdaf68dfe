"""Hold a decoder against minise/definition.py: each prompt alone, part by part.

The definition calls a part by the name of its module in a checkpoint, and computes in float64 with
the decoder's own weights. What it gives is compared with what the decoder's module of that name
gave, layer by layer, so that the first part that differs can be named. Queries and keys are
compared after their rotation, where attention takes them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from minise.attention import Attend
from minise.definition import Decoder as Definition
from minise.layout import causal_mask
from minise.lm import LocalModel
from minise.model import Decoder
from minise.prompts import Prompts
from minise.verify.comparison import TINY, size_of_rows
from minise.verify.recording import own_decoder

# Of a row's size, so far a right decoder may be from the definition. Seen of the shipped models,
# SmolLM2-135M and Qwen2.5-Coder-0.5B on an EPYC: 4.4e-14 in float64, where the rounding of all
# layers adds up; of a part 3.1e-5 in float32, 1.3e-3 in float16 and 1.2e-2 in bfloat16.
LIMITS = {torch.float64: 1e-12, torch.float32: 3e-4, torch.float16: 8e-3, torch.bfloat16: 6e-2}
# The last word of a module's name -> what it is called here. Others are called by their names.
CALLED = {
    "embed_tokens": "embedding",
    "input_layernorm": "norm before attention",
    "q_proj": "projection of queries",
    "k_proj": "projection of keys",
    "v_proj": "projection of values",
    "q_norm": "norm of queries",
    "k_norm": "norm of keys",
    "rotated_q": "rotation of queries",
    "rotated_k": "rotation of keys",
    "read": "attention",
    "o_proj": "attention (o_proj)",
    "self_attn": "attention",
    "post_attention_layernorm": "norm before the MLP",
    "gate_proj": "MLP (gate_proj)",
    "up_proj": "MLP (up_proj)",
    "down_proj": "MLP (down_proj)",
    "mlp": "MLP",
    "norm": "final norm",
    "logits": "output (logits)",
}


@dataclass(frozen=True)
class Fault:
    """The first part that differs: its name, the number of the prompt, the first token of it that
    differs, and how far that one is off, as a part of its size. did_not_run: a part that the
    decoder has and did not run before this one, if there is any."""

    part: str
    prompt: int
    token: int
    off: float
    did_not_run: str | None = None

    def __str__(self) -> str:
        where = f"prompt {self.prompt + 1}, token {self.token}, off by {self.off:.1e} of its size"
        text = f"{in_words(self.part)} ({where})"
        if self.did_not_run is not None:
            text += f"; {in_words(self.did_not_run)} did not run"
        return text


def in_words(part: str) -> str:
    """The layer and the part: "model.layers.2.mlp.up_proj" is "layer 2, MLP (up_proj)"."""
    words = part.split(".")
    if "layers" not in words:
        return CALLED.get(words[-1], part)
    _, _, layer, *inside = words
    if not inside:
        return f"layer {layer}, what it adds to the stream"
    return f"layer {layer}, {CALLED.get(inside[-1], '.'.join(inside))}"


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


@dataclass
class Held:
    """How far a decoder in `dtype` is from the definition, over `prompts` prompts: the largest
    difference of a token's row, as a part of its size. layers: of the stream after each layer;
    parts: of any part in them; logits: of those of the vocabulary. first: the first part that is
    off by more than `limit`."""

    dtype: torch.dtype
    layers: list[float]
    parts: float = 0.0
    logits: float = 0.0
    prompts: int = 0
    first: Fault | None = None

    @property
    def limit(self) -> float:
        return LIMITS[self.dtype]

    @property
    def most(self) -> float:
        """The largest that counts; NaN if one is. In float64 what a part is off is in the stream,
        too; in another dtype each part is on its own."""
        counted = [*self.layers, self.logits]
        if self.dtype != torch.float64:
            counted.append(self.parts)
        return float(torch.tensor(counted, dtype=torch.float64).max())

    @property
    def passed(self) -> bool:
        return self.most <= self.limit


class Weights(Mapping[str, Tensor]):
    """A decoder's weights in float64, by their names in a checkpoint. They are widened when they
    are asked for; those outside the layers are kept."""

    def __init__(self, decoder: Decoder) -> None:
        self.decoder = decoder
        self.kept: dict[str, Tensor] = {}

    def __getitem__(self, name: str) -> Tensor:
        if name in self.kept:
            return self.kept[name]
        module, _, last = name.rpartition(".")
        try:
            found = getattr(self.decoder.get_submodule(module), last)
        except AttributeError:
            raise KeyError(name) from None
        if found is None:  # a linear layer without a bias
            raise KeyError(name)
        wide: Tensor = found.detach().double()
        if ".layers." not in name:
            self.kept[name] = wide
        return wide

    def __iter__(self) -> Iterator[str]:
        return iter(self.decoder.state_dict())

    def __len__(self) -> int:
        return len(self.decoder.state_dict())


@torch.inference_mode()
def hold(lm: LocalModel, prompts: Prompts) -> Held:
    """Run each prompt alone by the decoder and by the definition, and compare each part. In float64
    all that the definition computes is its own. In another dtype each part is computed, in float64,
    from what the decoder had before it. The model has a definition."""
    assert lm.definition is not None
    decoder = own_decoder(lm)
    definition = lm.definition(Weights(decoder))
    held = Held(decoder.dtype, layers=[0.0] * definition.layers)
    for number, branch in enumerate(prompts.branches):
        comparison = Comparison(held, number, goes_on=decoder.dtype == torch.float64)
        tokens = torch.tensor(prompts.prefix + branch, device=decoder.device)
        hold_prompt(decoder, definition, tokens, comparison)
        held.prompts += 1
    return held


def hold_prompt(
    decoder: Decoder, definition: Definition, tokens: Tensor, comparison: Comparison
) -> None:
    """Compare one prompt. When the decoder has run a layer, the definition runs it, too: so what
    is kept for the comparison are the values of one layer."""
    T = len(tokens)
    positions = torch.arange(T, device=tokens.device)
    mask = causal_mask(T).to(tokens.device)
    x = definition.embed(tokens)
    done = 0

    def run_layer(*_: Any) -> None:
        nonlocal x, done
        if done == definition.layers:  # the decoder runs more: its logits are compared
            return
        with watched(definition, comparison):
            x = definition.layer(done, x, positions, mask)
        x = comparison.of_layer(done, x)
        done += 1

    with kept_values(decoder, comparison.given):
        hooks = [layer.register_forward_hook(run_layer) for layer in decoder.model.layers]
        try:
            hidden = decoder(tokens, positions, mask)
        finally:
            for hook in hooks:
                hook.remove()
    while done < definition.layers:  # those that the decoder left out
        run_layer()
    with watched(definition, comparison):
        logits = definition.read_out(x)
    comparison.of_logits(logits, decoder.logits(hidden))


class Comparison:
    """Compares the values of one prompt, in the order in which the definition computes them. given:
    the decoder's values, by their names; one that is compared is dropped. goes_on: the definition
    computes from what it computed before, and not from the decoder's values."""

    def __init__(self, held: Held, prompt: int, goes_on: bool) -> None:
        self.held = held
        self.prompt = prompt
        self.goes_on = goes_on
        self.given: dict[str, list[Tensor]] = {}
        self.did_not_run: str | None = None

    def part(self, name: str, expected: Tensor) -> Tensor:
        """Compare a part, if the decoder has one of this name. Returns what the definition goes on
        from: what it computed, or in another dtype than float64 what the decoder did. So each part
        is compared on the decoder's own input, and its rounding does not add up."""
        values = self.given.pop(name, None)
        if values is None:
            return expected
        found, far = self.compare(name, expected, values)
        self.held.parts = largest(self.held.parts, far)
        return found

    def of_layer(self, layer: int, expected: Tensor) -> Tensor:
        """Compare the stream after a layer. Returns what the definition goes on from."""
        name = f"model.layers.{layer}"
        found, far = self.compare(name, expected, self.given.pop(name))
        self.held.layers[layer] = largest(self.held.layers[layer], far)
        return found

    def of_logits(self, expected: Tensor, given: Tensor) -> None:
        far = self.differ("logits", expected, given.flatten().double())
        self.held.logits = largest(self.held.logits, far)

    def compare(self, name: str, expected: Tensor, values: list[Tensor]) -> tuple[Tensor, float]:
        """What the definition goes on from, and how far the decoder's values are off: those of all
        tokens, perhaps in pieces of so many tokens each; none, if the part did not run."""
        if not values:
            self.did_not_run = self.did_not_run or name
            return expected, 0.0
        found = torch.cat([value.flatten() for value in values]).double()
        far = self.differ(name, expected, found)
        if self.goes_on or found.numel() != expected.numel():
            return expected, far
        return found.view(expected.shape), far

    def differ(self, name: str, expected: Tensor, found: Tensor) -> float:
        """The largest difference of a token's row, as a part of its size. found: the decoder's
        values in one row, float64. If it is the first beyond the limit, it is kept."""
        wanted_TN = expected.flatten(1)
        if found.numel() == wanted_TN.numel():
            apart_TN = found.view(wanted_TN.shape) - wanted_TN
            far_T = size_of_rows(apart_TN) / size_of_rows(wanted_TN).clamp(min=TINY)
        else:
            far_T = torch.full((len(wanted_TN),), math.inf)
        is_far_T = ~(far_T <= self.held.limit)  # a NaN, too
        if is_far_T.any() and self.held.first is None:
            token = int(is_far_T.nonzero()[0])
            off = float(far_T[token])
            self.held.first = Fault(name, self.prompt, token, off, self.did_not_run)
        return float(far_T.max())


def largest(a: float, b: float) -> float:
    """The larger one; NaN if one is."""
    return float(torch.maximum(torch.tensor(a).double(), torch.tensor(b).double()))


@contextmanager
def kept_values(decoder: Decoder, given: dict[str, list[Tensor]]) -> Iterator[None]:
    """Keep what each module of a decoder gives in `given`, and the queries and keys that attention
    reads, rotated, and what it gives. A module that takes its tokens in pieces gives several."""

    def keep(_: Any, inputs: Any, output: Any, name: str) -> None:
        if isinstance(output, Tensor):
            given.setdefault(name, []).append(output)  # compared already, if it runs again

    hooks = []
    for name, module in decoder.named_modules():
        if isinstance(module, nn.Identity | nn.ModuleList) or name in ("", "model"):
            continue
        given[name] = []
        hooks.append(module.register_forward_hook(partial(keep, name=name)))
    real_reader = decoder.reader

    def reader(*arguments: Any) -> Attend:
        attend = real_reader(*arguments)

        def watch(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            out = attend(layer, q, k, v)
            name = f"model.layers.{layer}.self_attn"
            given.update(
                {f"{name}.rotated_q": [q], f"{name}.rotated_k": [k], f"{name}.read": [out]}
            )
            return out

        return watch

    # Of this object only.
    decoder.reader = reader  # type: ignore[assignment, method-assign]
    try:
        yield
    finally:
        del decoder.reader
        for hook in hooks:
            hook.remove()


@contextmanager
def watched(definition: Definition, comparison: Comparison) -> Iterator[None]:
    """Compare what the definition's parts give while the block lasts: of its norms, linear layers,
    MLPs and attention. Any of these may be another one in a definition of another family."""
    real_read = definition.read

    def of_part(real: Any) -> Any:
        def call(name: str, *arguments: Any) -> Tensor:
            return comparison.part(name, real(name, *arguments))

        return call

    def read(name: str, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        q = comparison.part(f"{name}.rotated_q", q)
        k = comparison.part(f"{name}.rotated_k", k)
        return comparison.part(f"{name}.read", real_read(name, q, k, v, mask))

    names = ("norm", "linear", "mlp", "attention")
    for name in names:
        setattr(definition, name, of_part(getattr(definition, name)))
    definition.read = read  # type: ignore[method-assign]
    try:
        yield
    finally:
        for name in (*names, "read"):
            delattr(definition, name)
