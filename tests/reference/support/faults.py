"""Faults that such code really has, each planted on purpose (claims/test_sabotage.py).

A fault wraps a function or class of the package from the outside and says nothing about how it is
written inside: a fork that renames a variable, or writes a formula in another way, keeps them all.
It is planted where the function is defined, before anything else imports it.
"""

import importlib
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

Make = Callable[..., Any]
FAULTS: dict[str, tuple[str, str, Make]] = {}


def fault(name: str, module: str, attribute: str) -> Callable[[Make], Make]:
    """Register what `minise.module`'s attribute becomes, made from what it is."""

    def register(make: Make) -> Make:
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


def with_attributes(change: Callable[[Any], dict[str, Any]]) -> Make:
    """A method during which attributes of `self` have other values."""

    def make(real: Any) -> Any:
        def method(self: Any, *arguments: Any, **named: Any) -> Any:
            others = change(self)
            before = {name: getattr(self, name) for name in others}
            try:
                for name, value in others.items():
                    setattr(self, name, value)
                return real(self, *arguments, **named)
            finally:
                for name, value in before.items():
                    setattr(self, name, value)

        return method

    return make


fault("swapped norms", "model", "Block.forward")(
    with_attributes(
        lambda block: {
            "input_layernorm": block.post_attention_layernorm,
            "post_attention_layernorm": block.input_layernorm,
        }
    )
)
for _name in ("key", "value"):
    fault(f"dropped {_name} bias", "model", "Attention.forward")(
        with_attributes(lambda a, name=f"{_name[0]}_proj": {name: without_bias(getattr(a, name))})
    )


def without_bias(linear: torch.nn.Linear) -> torch.nn.Linear:
    plain = torch.nn.Linear(linear.in_features, linear.out_features, bias=False, device="meta")
    plain.weight = linear.weight
    return plain


def with_heads(change: Callable[[Tensor, Tensor, Tensor], Any]) -> Make:
    """A chunk that reads other keys and values: q (B, R, H, h), k and v (B, U, K, h)."""

    def make(real: Any) -> Any:
        return lambda self, q, k, v: real(self, *change(q, k, v))

    return make


def repeats(q: Tensor, k: Tensor) -> int:
    return q.shape[-2] // k.shape[-2]


fault("key heads tiled instead of repeated", "attention", "Chunk.read")(
    with_heads(
        lambda q, k, v: (
            q,
            k.repeat(1, 1, repeats(q, k), 1),
            v.repeat_interleave(repeats(q, k), dim=2),
        )
    )
)
fault("value heads tiled instead of repeated", "attention", "Chunk.read")(
    with_heads(
        lambda q, k, v: (
            q,
            k.repeat_interleave(repeats(q, k), dim=2),
            v.repeat(1, 1, repeats(q, k), 1),
        )
    )
)


@fault("inverted mask", "attention", "chunks_of")
def inverted_mask(real: Any) -> Any:
    # A row that would see nothing sees everything: no empty softmax.
    return lambda mask, *others: real(~mask | mask.all(dim=-1, keepdim=True), *others)


def of_chunks(name: str, change: Callable[[list[Any]], list[Any]]) -> None:
    """A fault in the chunks of a pass, after they were made."""
    fault(name, "attention", "chunks_of")(lambda real: lambda *given: change(real(*given)))


def without_a_key(chunks: list[Any]) -> list[Any]:
    """The second key that a chunk reads, if there are more."""
    found = []
    for chunk in chunks:
        kept = torch.arange(len(chunk.keys_S)) != 1
        if chunk.mask_BCS is not None and kept.sum() > 2:
            keys, mask = chunk.keys_S[kept], chunk.mask_BCS[:, :, kept]
            chunk = replace(chunk, keys_S=keys, mask_BCS=mask | ~mask.any(-1, keepdim=True))
        found.append(chunk)
    return found


def of_other_rows(chunks: list[Any]) -> list[Any]:
    """Each query reads under the mask of the one before; a causal chunk has no mask to confuse."""
    found = []
    for chunk in chunks:
        if chunk.mask_BCS is not None:
            chunk = replace(chunk, mask_BCS=chunk.mask_BCS.roll(1, dims=1))
        found.append(chunk)
    return found


def of_the_first_chunk(chunks: list[Any]) -> list[Any]:
    """Each chunk reads as many tokens as it should, but from the first on."""
    return [replace(chunk, keys_S=torch.arange(len(chunk.keys_S))) for chunk in chunks]


of_chunks("a chunk that forgets a key", without_a_key)
of_chunks("a chunk with the mask of other rows", of_other_rows)
of_chunks("a chunk that reads from the first token on", of_the_first_chunk)


@fault("the rows of the top layer in another order", "model", "Decoder.run")
def other_rows(real: Any) -> Any:
    def run(self: Any, tokens: Any, positions: Any, attend: Any, rows: Any = None) -> Tensor:
        turned = None if rows is None else rows.flip(0)
        return real(self, tokens, positions, attend, turned)

    return run


fault("wrong epsilon", "model", "RMSNorm.__init__")(
    lambda real: lambda self, size, eps: real(self, size, 1e-5)
)
fault("norms narrowed to float32", "model", "RMSNorm.forward")(
    lambda real: lambda self, x: real(self, x.float()).to(x.dtype)
)


@fault("windows by index", "attention", "within")
def windows_by_index(real: Any) -> Any:
    def within(mask: Tensor, rows: Tensor, columns: Tensor, window: Any) -> Tensor:
        index = torch.arange(mask.shape[-1])
        return real(mask, index[-mask.shape[-2] :], index, window)

    return within


@fault("a window of one more", "attention", "within")
def wider_windows(real: Any) -> Any:
    return lambda mask, rows, columns, w: real(mask, rows, columns, None if w is None else w + 1)


@fault("interleaved rotary pairs", "rope", "cos_sin")
def interleaved(real: Any) -> Any:
    def cos_sin(*arguments: Any) -> tuple[Tensor, Tensor]:
        cos, sin = (x.chunk(2, dim=-1)[0].repeat_interleave(2, dim=-1) for x in real(*arguments))
        return cos, sin

    return cos_sin


fault("rotation the other way", "rope", "rotate")(
    lambda real: lambda x, cos, sin: real(x, cos, -sin)
)
fault("angles in the model's dtype", "rope", "cos_sin")(
    lambda real: lambda config, at, dtype: real(config, at.to(dtype), dtype)
)


def of_pack(name: str, change: Callable[[Any, Any], None]) -> None:
    """A fault that changes a layout, given the prefix."""

    def make(real: Any) -> Any:
        def pack(prefix: Any, branches: Any, tree: bool = False) -> Any:
            layout = real(prefix, branches, tree)
            change(vars(layout), prefix)
            return layout

        return pack

    fault(name, "layout", "pack")(make)


of_pack(
    "positions not re-encoded",
    lambda layout, prefix: layout.update(positions=torch.arange(len(layout["tokens"]))),
)
of_pack(
    "the paper's misprinted index_j",
    lambda layout, prefix: layout.update(
        ends=torch.cat([torch.tensor([max(len(prefix) - 1, 0)]), layout["ends"][:-1]])
    ),
)
fault("a flat layout that merges", "layout", "pack")(
    lambda real: lambda prefix, branches, tree=False: real(prefix, branches, tree=True)
)
fault("no block mask", "layout", "Layout.mask")(
    lambda real: property(lambda self: torch.ones(2 * [len(self.tokens)]).tril().bool())
)


def of_reader(name: str, change: Callable[[Any], None]) -> None:
    """A fault in the reader of equal bits, after it was made."""

    def make(real: Any) -> Any:
        def reader_of(*arguments: Any) -> Any:
            reader = real(*arguments)
            change(reader)
            return reader

        return reader_of

    fault(name, "lab.equal_bits.attention", "reader_of")(make)


def see_everything(reader: Any) -> None:
    calls = []
    for call in reader.calls:
        Q, S = call.queries.shape[1], call.keys.shape[1]
        calls.append(replace(call, mask=torch.ones(1, Q, S, dtype=torch.bool)))
    reader.calls = calls


def read_no_far_keys(reader: Any) -> None:
    reader.calls = [call for call in reader.calls if not call.far]


of_reader(
    "equal bits that forget windows",
    lambda reader: setattr(reader, "windows", [None] * len(reader.windows)),
)
of_reader("equal bits that read what comes after", see_everything)
of_reader("equal bits that forget far keys", read_no_far_keys)


def run_planted(name: str, file: str, test: str, output: str) -> None:
    """Run the tests of a file whose names hold `test`, with a fault planted, in a process of their
    own; what it prints goes to a file."""
    with open(output, "w") as stream:
        os.dup2(stream.fileno(), 1)
        os.dup2(stream.fileno(), 2)
    plant(name)
    # Hypothesis would be imported at a failure, which takes longer than the test.
    fast = ("-p", "no:cacheprovider", "-p", "no:hypothesispytest")
    sys.exit(pytest.main(["-x", "-q", *fast, "-k", test, file]))
