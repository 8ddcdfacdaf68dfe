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


def with_arguments(change: Callable[[Tensor, Tensor, Tensor, Tensor], Any]) -> Make:
    """An attention that reads other queries, keys, values or mask."""
    return lambda real: lambda *arguments: real(*change(*arguments))


def repeats(q: Tensor, k: Tensor) -> int:
    return q.shape[-2] // k.shape[-2]


for _name, _change in {
    "key heads tiled instead of repeated": lambda q, k, v, mask: (
        q,
        k.repeat(1, 1, repeats(q, k), 1),
        v.repeat_interleave(repeats(q, k), dim=2),
        mask,
    ),
    "value heads tiled instead of repeated": lambda q, k, v, mask: (
        q,
        k.repeat_interleave(repeats(q, k), dim=2),
        v.repeat(1, 1, repeats(q, k), 1),
        mask,
    ),
    # A row that would see nothing sees everything: no empty softmax.
    "inverted mask": lambda q, k, v, mask: (q, k, v, ~mask | mask.all(dim=-1, keepdim=True)),
}.items():
    fault(_name, "attention", "masked_attention")(with_arguments(_change))

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
fault("no block mask", "layout", "Tree.mask")(
    lambda real: property(lambda self: torch.ones(2 * [len(self.tokens)]).tril().bool())
)


def of_reader(change: Callable[[Any], None]) -> Make:
    """A reader of trees that is changed after it was made."""

    def make(real: Any) -> Any:
        def tree_reader(*arguments: Any) -> Any:
            reader = real(*arguments)
            change(reader)
            return reader

        return tree_reader

    return make


def see_everything(reader: Any) -> None:
    sizes = [(*call.queries.shape, call.keys.shape[1]) for call in reader.calls]
    reader.calls = [
        replace(call, mask=torch.ones(1, Q, S, dtype=torch.bool))
        for call, (_, Q, S) in zip(reader.calls, sizes, strict=True)
    ]


fault("a tree that forgets windows", "exact.attention", "tree_reader")(
    of_reader(lambda reader: setattr(reader, "windows", [None] * len(reader.windows)))
)
fault("a tree that reads what comes after", "exact.attention", "tree_reader")(
    of_reader(see_everything)
)


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
