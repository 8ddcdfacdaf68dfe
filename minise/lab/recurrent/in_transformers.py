"""The recurrent layers of a model of the transformers library, in a pass under a mask.

Its layers call functions of their own module. `prepare` exchanges these once: the one put there
asks a context variable whether a pass under a mask runs, and if not, calls the old one. So other
threads, and other models of the same class, run as ever. Fast kernels that are installed lie behind
the old ones, and are never used for a tree. After each recurrent layer a hook looks whether it came
by: one that went another way is an error.

Next to read: minise/lab/serving/transformers.py.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from types import ModuleType
from typing import Any

from torch import Tensor, nn

from minise.lab.recurrent.exchanged import FUNCTIONS, METHODS, SCANS, Pass
from minise.lab.recurrent.paths import paths_of

NOW: ContextVar[Pass | None] = ContextVar("NOW", default=None)


def by_context(old: Callable[..., Any], new: Callable[..., Any]) -> Callable[..., Any]:
    """`new` in a pass under a mask, which is its first argument, and `old` otherwise."""

    @functools.wraps(old)
    def either(*given: Any, **named: Any) -> Any:
        now = NOW.get()
        return old(*given, **named) if now is None else new(now, *given, **named)

    either.is_by_context = True  # type: ignore[attr-defined]
    return either


def prepare(model: nn.Module) -> None:
    """Exchange the functions in the modules of code that the model's classes come from, and the
    methods of its layers. What was exchanged stays so, and does nothing outside `along`."""
    for code in code_of(model):
        for name, new in FUNCTIONS.items():
            old = getattr(code, name, None)
            if old is not None and not hasattr(old, "is_by_context"):
                setattr(code, name, by_context(old, new))
    for layer in model.modules():
        if type(layer).__name__ in METHODS:
            attribute, method, new = METHODS[type(layer).__name__]
            holder = getattr(layer, attribute) if attribute else layer
            old = getattr(holder, method)
            if not hasattr(old, "is_by_context"):
                setattr(holder, method, by_context(old, on_layer(new, holder, old)))


def on_layer(new: Callable[..., Any], layer: Any, old: Callable[..., Any]) -> Callable[..., Any]:
    """A method of a layer: after the pass it gets the layer and what it stands for."""

    def method(now: Pass, *given: Any, **named: Any) -> Any:
        return new(now, layer, old, *given, **named)

    return method


def code_of(model: nn.Module) -> set[ModuleType]:
    """The library's modules that the classes of the model are written in."""
    found = set()
    for part in model.modules():
        name = type(part).__module__
        if name.startswith("transformers.models."):
            found.add(sys.modules[name])
    return found


def must_call(layer: nn.Module) -> set[str]:
    """What a layer must call of the exchanged functions, by what it is made of: a convolution where
    it has one, and a scan where it has decays, too."""
    if type(layer).__name__ in SCANS:
        return {"scan"}
    if not any(isinstance(child, nn.Conv1d) for child in layer.children()):
        return set()
    names = {name.rpartition(".")[2] for name, _ in layer.named_parameters()}
    return {"convolution", "scan"} if names & {"A_log", "A"} else {"convolution"}


@contextmanager
def along(model: nn.Module, mask: Tensor) -> Iterator[None]:
    """Inside the block, in this thread, the recurrent layers of a prepared model read along the
    paths of the mask (T, T). Raises InputError for a mask that is no tree, and RuntimeError if a
    layer calls nothing that was exchanged: a kernel replaced it, or training fuses it."""
    now = Pass(paths_of(mask))

    def check(layer: nn.Module, _: Any, __: Any, needed: set[str]) -> None:
        if NOW.get() is not now:  # another thread's pass
            return
        missing = ", ".join(sorted(needed - now.called))
        if missing:
            raise RuntimeError(f"{type(layer).__name__} went past the mask: no {missing} of ours")
        now.called -= needed

    hooks = []
    for layer in model.modules():
        needed = must_call(layer)
        if needed:
            hooks.append(layer.register_forward_hook(partial(check, needed=needed)))
    token = NOW.set(now)
    try:
        yield
    finally:
        NOW.reset(token)
        for hook in hooks:
            hook.remove()
