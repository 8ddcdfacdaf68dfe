"""A guard for a trainer or a server: does the model that runs give packed documents the logits of
separate runs? At the first call that packs anything, and again when rows grow longer than any
before, a few of the packed documents run alone. What rounding explains is measured on them too:
they run again with an error of one unit in the output of every layer.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn

from minise.errors import InputError
from minise.layout import causal_mask
from minise.verify.comparison import relative
from minise.verify.formats import Given
from minise.verify.judging import Report, check
from minise.verify.packing import as_tree

FEW = 3  # documents that run alone, at most
FACTOR = 6  # how many times the measured rounding is allowed
Call = dict[str, Any]


@dataclass(frozen=True)
class Mismatch:
    """What a guard found, in words. apart: the largest difference of a token's logits from those of
    the separate run, as a part of their size; allowed: what rounding explains. report: what `check`
    says of the row that the model was given. again(): runs the call anew, without the guard."""

    words: str
    apart: float
    allowed: float
    report: Report
    again: Callable[[], Any]


class Guard:
    """What `guard` returns. longest: tokens of the longest row that was compared; compared: how
    many documents ran alone so far, 0 until something is packed. remove(): takes it off."""

    def __init__(self, model: nn.Module, on_mismatch: Any, documents: Any) -> None:
        self.longest, self.compared, self.busy = 1, 0, False
        self.act, self.documents = on_mismatch, documents
        self.inner = getattr(model, "_orig_mod", model)  # what torch.compile wraps
        hook: Any = torch.compiler.disable(self._hook)
        self.remove = model.register_forward_hook(hook, with_kwargs=True).remove

    def _hook(self, model: nn.Module, args: Any, kwargs: Call, output: Any) -> Any:
        ids = kwargs.get("input_ids", args[0] if args else None)
        if self.busy or ids is None or ids.shape[-1] <= self.longest:
            return None
        names = inspect.signature(self.inner.forward).parameters
        call = {**dict(zip(names, args, strict=False)), **kwargs, "input_ids": ids}
        again = partial(self._quiet, model, *args, **kwargs)
        try:
            found = self._quiet(self._compare, call, output, again)
        except InputError as error:  # a form that it cannot read is no reason to stop a training
            self.longest = ids.shape[-1]
            return warnings.warn(f"guard: nothing was compared: {error}", stacklevel=2)
        if found is None or callable(self.act):
            return found and self.act(found)
        if self.act == "raise":
            raise RuntimeError(found.words)
        return warnings.warn(found.words, stacklevel=2)

    def _quiet(self, run: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Run what this guard does not see."""
        self.busy = True
        try:
            return run(*args, **kwargs)
        finally:
            self.busy = False

    @torch.no_grad()
    def _compare(self, call: Call, output: Any, again: Callable[[], Any]) -> Mismatch | None:
        """None if nothing is packed, or if all is equal."""
        ids, places, inner = call["input_ids"], call.get("position_ids"), self.inner
        named = [(name, one) for name, one in call.items() if one is not None]
        if (places is not None and places.dim() > 2) or any(
            name.startswith("pixel") or getattr(one, "get_seq_length", int)() for name, one in named
        ):
            return None  # documents that have images, or calls that are given a cache
        trees = [self._tree(call, row) for row in range(len(ids))]
        paths = [(row, path) for row, one in enumerate(trees) for path in as_tree(one).paths()]
        packed = [one for one in paths if len(one[1]) < ids.shape[1]]
        packed.sort(key=lambda one: one[1][-1] == len(one[1]) - 1)  # who can see no other, last
        if not packed:
            return None
        some, modes = packed[:: -(-len(packed) // FEW)], [(m, m.training) for m in inner.modules()]
        try:
            logits = _logits(output, ids)
            if logits is None or (inner.training and _drops(inner)):
                inner.eval()
                unlabelled = {name: one for name, one in named if name != "labels"}
                logits = _logits(inner.forward(**unlabelled), ids)
            if logits is None:
                raise InputError("the model gives no logits (batch, tokens, vocabulary)")
            found = [(*self._apart(call, logits, *one), *one) for one in some]
        finally:
            for module, training in modes:
                module.training = training
        self.longest, self.compared = ids.shape[1], self.compared + len(some)
        apart, allowed, row, path = max(found, key=lambda one: one[0] / one[1])
        if apart <= allowed:
            return None
        fields = _fields(call, row)
        fields |= {} if {"attention_mask", "cu_seqlens"} & fields.keys() else {"restarts": True}
        report = check(tree=trees[row], **fields)
        words = (
            f"packed is not equal to separate: the prompt of {len(path)} tokens that ends in token "
            f"{path[-1]} of row {row} has other logits than alone, apart by {apart:.1e} of their "
            f"size; rounding in {str(logits.dtype)[6:]} explains {allowed:.1e}"
        )
        parts = [f"{one.what}: {one.words}\n  to mend it: {one.mend}" for one in report.findings]
        right = "what the model was given is right, so its attention does not go by it"
        return Mismatch("\n".join([words, *(parts or [right])]), apart, allowed, report, again)

    def _tree(self, call: Call, row: int) -> list[int]:
        """The token before each in its prompt, -1 for a first one, -2 for padding: as the mask says
        it, or as the positions do if these make more prompts."""
        fields, T = _fields(call, row), call["input_ids"].shape[1]
        places = fields.get("position_ids", torch.arange(T))
        if self.documents is not None:
            fields = {"cu_seqlens": [0, *accumulate(self.documents(call)[row])]}
        seen, _, hidden = Given(fields, places).mask()
        if self.documents is not None:
            hidden = torch.arange(T) >= fields["cu_seqlens"][-1]
        before = seen.tril(-1)
        told = torch.where(before.any(1), T - 1 - before.flip(1).int().argmax(1), -1).tolist()
        walked: list[int] = []
        latest: dict[int, int] = {}  # token of each depth
        for t, place in enumerate(places.tolist()):
            walked.append(latest.get(place - 1, -1))
            latest |= {} if hidden[t] else {place: t}
        breaks = [sum(one[t] != t - 1 for t in range(T) if not hidden[t]) for one in (told, walked)]
        tree = walked if self.documents is None and breaks[1] > breaks[0] else told
        return [-2 if hidden[t] else one for t, one in enumerate(tree)]

    def _apart(self, call: Call, logits: Tensor, row: int, path: list[int]) -> tuple[float, float]:
        """How far a prompt is from its separate run, and how far rounding explains."""
        n, mask = len(path), call.get("attention_mask")
        alone: Call = {name: one for name, one in call.items() if isinstance(one, bool | str)}
        alone |= {"use_cache": False} if "use_cache" in alone else {}
        alone["input_ids"] = call["input_ids"][row : row + 1, path]
        if call.get("position_ids") is not None:
            alone["position_ids"] = torch.arange(n)[None].to(call["position_ids"])
        if isinstance(mask, Tensor) and mask.dim() < 3:
            alone["attention_mask"] = torch.ones_like(mask[:1, :n])
        elif isinstance(mask, Tensor):
            seen = Given(_fields(call, row), torch.arange(mask.shape[-1])).mask()[0].sum(1)
            shown = causal_mask(n).triu(1 - int(seen.max())).to(mask.device)  # with its window
            least = torch.finfo(mask.dtype).min if mask.is_floating_point() else 0
            shown = torch.where(shown, 0 if least else 1, least).to(mask.dtype)
            alone["attention_mask"] = shown.view(*[1] * (mask.dim() - 2), n, n)

        def centred(rows: Tensor) -> Tensor:
            return rows.double() - rows.double().mean(dim=-1, keepdim=True)

        def run() -> Tensor:
            return centred(_logits(self.inner.forward(**alone), alone["input_ids"])[0])

        right, generator = run(), torch.Generator(logits.device).manual_seed(0)
        layers = [one for one in self.inner.modules() if not [*one.children()]]
        hooks = [one.register_forward_hook(partial(_noise, generator)) for one in layers]
        try:
            noise = relative(right, run())
        finally:
            for hook in hooks:
                hook.remove()
        apart = relative(right, centred(logits[row, path]))
        allowed = FACTOR * max(noise, torch.finfo(logits.dtype).eps)
        return apart if apart == apart else float("inf"), allowed


def guard(
    model: nn.Module,
    on_mismatch: str | Callable[[Mismatch], Any] = "warn",
    documents: Callable[[Call], list[list[int]]] | None = None,
) -> Guard:
    """Watch a model for packed rows that are not equal to separate runs. It may be any module that
    takes input_ids (batch, tokens), position_ids and attention_mask, and gives logits.

    on_mismatch: "warn", "raise" (RuntimeError), or a function of the Mismatch; what this returns,
    if not None, becomes the output of the call. Where documents begin is read from the mask,
    cu_seq_lens_q and the positions; or documents(arguments) says their lengths, for each row.
    Between comparisons a call costs one look at a length. Raises InputError for another word.
    """
    if on_mismatch not in ("warn", "raise") and not callable(on_mismatch):
        raise InputError("on_mismatch: give warn, raise, or a function")
    return Guard(model, on_mismatch, documents)


def _fields(call: Call, row: int) -> Call:
    """A row of a call as `check` takes it."""
    mask, places = call.get("attention_mask"), call.get("position_ids")
    fields = {"input_ids": call["input_ids"][row].cpu()}
    if places is not None:
        rows = places.view(-1, places.shape[-1])
        fields["position_ids"] = rows[row % len(rows)].cpu()
    if isinstance(mask, Tensor) and mask.dim() > 2:
        fields["attention_mask"] = mask[row % len(mask)].flatten(0, -3)[:1].cpu()[None]
    elif isinstance(mask, Tensor):
        fields["attention_mask"] = mask[row % len(mask)].cpu()
        fields |= {"mask_is": "segments"} if (mask > 1).any() else {}
    elif hasattr(mask, "mask_mod"):
        fields["attention_mask"] = mask
    elif call.get("cu_seq_lens_q") is not None:
        fields["cu_seqlens"] = call["cu_seq_lens_q"].cpu()
    return fields


def _logits(output: Any, ids: Tensor) -> Any:
    """The logits (batch, tokens, vocabulary) of a model's output; None if it has none."""
    given = getattr(output, "logits", output[0] if isinstance(output, tuple) else output)
    fits = isinstance(given, Tensor) and given.dim() == 3 and given.shape[:2] == ids.shape
    return given if fits else None


def _drops(model: nn.Module) -> bool:
    """Whether training leaves out numbers at random."""
    config = vars(getattr(model, "config", None) or nn.Module())
    rates = [one for name, one in config.items() if "drop" in name]
    rates += [one.p for one in model.modules() if isinstance(one, nn.Dropout)]
    return any(isinstance(one, float) and one > 0 for one in rates)


def _noise(generator: torch.Generator, _: nn.Module, inputs: Any, output: Any) -> Any:
    """An output that is off by up to one unit of rounding in every entry."""
    if not isinstance(output, Tensor) or not output.is_floating_point():
        return None
    wide = output.to(torch.promote_types(output.dtype, torch.float32))
    unit = torch.rand(wide.shape, generator=generator, device=wide.device, dtype=wide.dtype) * 2 - 1
    return (wide * (1 + torch.finfo(output.dtype).eps * unit)).to(output.dtype)
