"""A guard for a trainer or a server: does the model that runs give packed documents the logits of
separate runs? docs/check.md says how it looks, and what it does not look at."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from minise.errors import InputError
from minise.verify.comparison import relative
from minise.verify.formats import Given, as_tree, need
from minise.verify.judging import check

ALONE = 3  # documents that run alone, at most
ALLOWED = 2  # times the measured rounding; docs/check.md says why
READ = {"input_ids": 2, "position_ids": 2, "attention_mask": 4}  # dimensions of each, at most
KNOWN = READ | {"cu_seq_lens_q": 1, "cu_seq_lens_k": 1}
UNUSED = ("labels", "num_items_in_batch", "logits_to_keep")


def guard(model: nn.Module, on_mismatch: Any = "warn") -> Guard:
    """Watch a model for packed rows that are not equal to separate runs, at the first call that
    packs, and again when rows grow longer than any before. model: any module that is called with
    input_ids=(batch, tokens), position_ids, attention_mask, is causal without a mask, and gives
    logits. on_mismatch: "warn", "raise" (RuntimeError), or a function(words, again), where again()
    runs the call anew; what it returns, if not None, becomes the output. Else raises InputError.

    Returns a `Guard`. longest: tokens of the longest row that was compared. compared: how many
    documents ran alone, 0 until something is packed. remove(): takes it off the model.
    """
    is_known = on_mismatch in ("warn", "raise") or callable(on_mismatch)
    need(is_known, "on_mismatch: give warn, raise, or a function")
    return Guard(model, on_mismatch)


@dataclass(frozen=True)
class PackedRow:
    """A row of a call. fields: as `check` takes them. parents: of each token the row of the one
    before it in its document, -1 for a first one, -2 for padding."""

    fields: dict[str, Any]
    parents: list[int]


@dataclass(frozen=True)
class Document:
    """Tokens of a row of a call that are one document, first to last."""

    row: int
    tokens: list[int]


class Guard:
    """Watches a model: made by `guard`, which says what it holds."""

    def __init__(self, model: nn.Module, on_mismatch: Any) -> None:
        self.longest = 1
        self.compared = 0
        self.on_mismatch = on_mismatch
        self.inner: Any = getattr(model, "_orig_mod", model)  # what torch.compile wraps
        hook: Any = torch.compiler.disable(self._hook)
        self.remove = model.register_forward_hook(hook, with_kwargs=True).remove

    def _hook(self, model: nn.Module, args: Any, given: dict[str, Any], output: Any) -> Any:
        if "input_ids" not in given or given["input_ids"].shape[-1] <= self.longest:
            return None
        try:
            words = self.look(given)
        except InputError as error:  # no reason to stop a training
            self.longest = given["input_ids"].shape[-1]
            warnings.warn(f"guard: no verdict: {error}", stacklevel=2)
            return None
        if not words:
            return None
        if callable(self.on_mismatch):
            return self.on_mismatch(words, lambda: model(*args, **given))
        if self.on_mismatch == "raise":
            raise RuntimeError(words)
        warnings.warn(words, stacklevel=2)
        return None

    @torch.no_grad()
    def look(self, given: dict[str, Any]) -> str:
        """What is wrong, in words; none if nothing is packed, or if all is equal."""
        call = readable(given)
        if is_unpacked(call):
            return ""

        # 1. The documents, as the call says them. One that is a whole row is alone already.
        batch, T = call["input_ids"].shape
        rows = [read_row(call, number) for number in range(batch)]
        documents = []
        for number, row in enumerate(rows):
            for tokens in as_tree(row.parents).paths():
                if len(tokens) < T:
                    documents.append(Document(number, tokens))
        if not documents:
            return ""

        # 2. Some of them alone, spread over all, with the model in eval mode.
        training = [module for module in self.inner.modules() if module.training]
        if any(getattr(module, "gradient_checkpointing", False) for module in training):
            call["use_cache"] = False  # as in training; with a cache, transformers masks otherwise
        step = max(1, len(documents) // ALONE)
        try:
            self.inner.eval()
            packed = self.run(call)
            for document in documents[::-1][::step][:ALONE]:
                self.longest = T
                self.compared += 1
                words = self.compare(call, packed, document)
                if words:
                    row = rows[document.row]
                    report = check(tree=row.parents, **row.fields)
                    return f"{words}\nthe given row: {report}"
        finally:
            for module in training:
                module.training = True
        return ""

    def compare(self, call: dict[str, Any], packed: Tensor, document: Document) -> str:
        """How the logits of a document alone differ from the packed ones; none if they do not."""
        ids = call["input_ids"]
        positions = torch.arange(len(document.tokens), device=ids.device)
        alone: dict[str, Any] = {}
        for name, value in call.items():
            if isinstance(value, bool | str):
                alone[name] = value
        alone["input_ids"] = ids[document.row, document.tokens][None]
        alone["position_ids"] = positions[None]

        right = self.run(alone)
        with nn.modules.module.register_module_forward_hook(nudge):
            rounding = relative(right, self.run(alone))
        allowed = ALLOWED * max(rounding, torch.finfo(right.dtype).eps)
        apart = relative(right, packed[document.row, document.tokens][None])
        if apart <= allowed:  # NaN is not
            return ""
        return (
            f"packed is not equal to separate: in row {document.row} the logits of the "
            f"document up to token {document.tokens[-1]} are off by {apart:.1e} of their size; "
            f"rounding explains {allowed:.1e}"
        )

    def run(self, call: dict[str, Any]) -> Tensor:
        """The logits of a call, past the hooks of the module."""
        output = self.inner.forward(**call)
        logits: Tensor = output if isinstance(output, Tensor) else output[0]
        return logits


def readable(given: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a call that the logits depend on. Refuse one that is not understood."""
    call = {}
    for name, value in given.items():
        if name in UNUSED or value is None:
            continue
        is_known = isinstance(value, Tensor) and value.ndim <= KNOWN.get(name, -1)
        is_word = isinstance(value, bool | int | str)
        need(is_known or is_word, f"{name}: no document alone has it")
        call[name] = value
    return call


def is_unpacked(call: dict[str, Any]) -> bool:
    """Whether each row is one document: no padding, no borders, and positions that run on."""
    mask = call.get("attention_mask")
    positions = call.get("position_ids")
    if "cu_seq_lens_q" in call:
        return False
    if mask is not None and (mask.ndim != 2 or bool((mask != 1).any())):
        return False
    return positions is None or bool((positions.diff() == 1).all())


def read_row(call: dict[str, Any], number: int) -> PackedRow:
    """A row of a call. Its tree is what the mask says; or, where this shows one document only, what
    positions that start over say."""
    fields: dict[str, Any] = {}
    for name in READ:
        if name in call:
            rows = call[name]
            fields[name] = rows[number % len(rows)]  # one may stand for all
    if "cu_seq_lens_q" in call:
        fields["cu_seqlens"] = call["cu_seq_lens_q"]
    mask = fields.get("attention_mask")
    if mask is None:
        fields["restarts"] = "cu_seqlens" not in fields
    elif mask.ndim == 1 and (mask > 1).any():
        fields["mask_is"] = "segments"
    given = Given(fields, len(fields["input_ids"]))
    real = ~given.hidden
    before = last_seen(given.mask & real)
    real_tokens = int(real.sum())
    if len(before[real].unique()) == real_tokens:  # no two tokens follow one: a single document
        by_positions = Given({"restarts": True, "position_ids": given.positions}, given.T)
        before = last_seen(by_positions.mask & real)
    parents = torch.where(real, before, -2)
    return PackedRow(fields, parents.tolist())


def last_seen(mask: Tensor) -> Tensor:
    """The last token before each that it may attend to: (T,), -1 for none."""
    places = torch.arange(1, len(mask) + 1, dtype=torch.int32)
    return (mask.tril(-1) * places).amax(dim=1).long() - 1


def nudge(layer: nn.Module, inputs: Any, output: Any) -> Any:
    """A layer's output, off by half a unit, up and down in turn: all later rounding changes."""
    is_leaf = not list(layer.children())
    is_computed = isinstance(output, Tensor) and output.is_floating_point()
    if not is_leaf or not is_computed:
        return None
    up_and_down = torch.arange(output.shape[-1], device=output.device) % 2 - 0.5
    error = (up_and_down * torch.finfo(output.dtype).eps).to(output.dtype)
    return output + output * error
