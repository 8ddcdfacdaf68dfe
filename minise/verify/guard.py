"""A guard for a trainer or a server: does the model that runs give packed documents the logits of
separate runs? docs/check.md says how it looks, and what it does not look at."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor, nn

from minise.errors import InputError
from minise.verify.comparison import relative
from minise.verify.formats import Given, as_tree, need
from minise.verify.judging import check

FEW = 3  # documents that run alone, at most
FACTOR = 2  # how many times the measured rounding is allowed; docs/check.md says why
ROWS = {"input_ids": 2, "position_ids": 2, "attention_mask": 4}  # most dimensions of each
KNOWN = ROWS | {"cu_seq_lens_q": 1, "cu_seq_lens_k": 1}
UNUSED = ("labels", "num_items_in_batch", "logits_to_keep")


class guard:  # called like a function
    """Watch a model for packed rows that are not equal to separate runs, at the first call that
    packs, and again when rows grow longer than any before. model: any module that is called with
    input_ids=(batch, tokens), position_ids, attention_mask, is causal without a mask, and gives
    logits. on_mismatch: "warn", "raise" (RuntimeError), or a function(words, again), where again()
    runs the call anew; what it returns, if not None, becomes the output. Else raises InputError.
    longest: tokens of the longest row that was compared; compared: how many documents ran alone, 0
    until something is packed. remove(): takes it off."""

    def __init__(self, model: nn.Module, on_mismatch: Any = "warn") -> None:
        known = on_mismatch in ("warn", "raise") or callable(on_mismatch)
        need(known, "on_mismatch: give warn, raise, or a function")
        self.longest, self.compared, self.act = 1, 0, on_mismatch
        self.inner: Any = getattr(model, "_orig_mod", model)  # what torch.compile wraps
        hook: Any = torch.compiler.disable(self._hook)
        self.remove = model.register_forward_hook(hook, with_kwargs=True).remove

    def _hook(self, model: nn.Module, args: Any, given: dict[str, Any], _: Any) -> Any:
        if "input_ids" not in given or given["input_ids"].shape[-1] <= self.longest:
            return None
        try:
            words = self._look(given)
        except InputError as error:  # no reason to stop a training
            self.longest = given["input_ids"].shape[-1]
            return warnings.warn(f"guard: no verdict: {error}", stacklevel=2)
        if words and callable(self.act):
            return self.act(words, lambda: model(*args, **given))
        if words and self.act == "raise":
            raise RuntimeError(words)
        return warnings.warn(words, stacklevel=2) if words else None

    @torch.no_grad()
    def _look(self, given: Any) -> str:
        """What is wrong, in words; none if nothing is packed, or if all is equal."""

        def run(call: Any) -> Any:
            output = self.inner.forward(**call)
            return output if isinstance(output, Tensor) else output[0]

        call: Any = {one: given[one] for one in given.keys() - UNUSED if given[one] is not None}
        for name, one in call.items():
            known = isinstance(one, Tensor) and one.ndim <= KNOWN.get(name, -1)
            need(known or isinstance(one, bool | int | str), f"{name}: no document alone has it")
        ids, places, mask = map(call.get, ROWS)
        ones = mask is None or (mask.ndim == 2 and bool((mask == 1).all()))
        if ones and "cu_seq_lens_q" not in call and (places is None or (places.diff() == 1).all()):
            return ""  # each row is one document
        rows = [_read(call, row) for row in range(len(ids))]
        paths = [(row, one) for row, (_, tree) in enumerate(rows) for one in as_tree(tree).paths()
                 if len(one) < ids.shape[1]]  # fmt: skip
        training = [module for module in self.inner.modules() if module.training]
        if any(getattr(module, "gradient_checkpointing", False) for module in training):
            call["use_cache"] = False  # as in training; with a cache, transformers masks otherwise
        try:
            self.inner.eval()
            packed = run(call) if paths else ids
            for row, path in paths[::-1][:: len(paths) // FEW or 1][:FEW]:
                self.longest, self.compared = ids.shape[1], self.compared + 1
                alone: Any = {one: call[one] for one in call if isinstance(call[one], bool | str)}
                alone["position_ids"] = torch.arange(len(path), device=ids.device)[None]
                alone["input_ids"] = ids[row : row + 1, path]
                right = run(alone)
                with nn.modules.module.register_module_forward_hook(_nudge):
                    rounding = relative(right, run(alone))
                allowed = FACTOR * max(rounding, torch.finfo(right.dtype).eps)
                apart = relative(right, packed[row : row + 1, path])
                if not apart <= allowed:  # as NaN is not
                    return (f"packed is not equal to separate: in row {row} the logits of the "
                        f"document up to token {path[-1]} are off by {apart:.1e} of their size; "
                        f"rounding explains {allowed:.1e}\n"
                        f"the given row: {check(tree=rows[row][1], **rows[row][0])}")  # fmt: skip
        finally:
            for module in training:
                module.training = True
        return ""


def _read(call: dict[str, Any], row: int) -> tuple[dict[str, Any], list[int]]:
    """A row of a call as `check` takes it, and its tree, as the mask says it; or where this shows
    one document only, as positions that start over do."""
    fields = {name: call[name][row % len(call[name])] for name in ROWS if name in call}
    fields |= {"cu_seqlens": call["cu_seq_lens_q"]} if "cu_seq_lens_q" in call else {}
    mask = fields.get("attention_mask")
    if mask is None:
        fields["restarts"] = "cu_seqlens" not in fields
    elif mask.ndim == 1 and (mask > 1).any():
        fields["mask_is"] = "segments"
    given = Given(fields, len(fields["input_ids"]))
    alone = Given({"restarts": True, "position_ids": given.positions}, given.T)
    for one in (given, alone):
        shown = (one.mask & ~given.hidden).tril(-1)
        before = (shown * (given.index + 1).int()).amax(1) - 1  # the last that a token sees
        if len(before[~given.hidden].unique()) < (~given.hidden).sum():  # more than one document
            break
    return fields, torch.where(given.hidden, -2, before).tolist()


def _nudge(layer: nn.Module, inputs: Any, output: Any) -> Any:
    """A layer's output, off by half a unit, up and down in turn: all later rounding changes."""
    if [*layer.children()] or not isinstance(output, Tensor) or not output.is_floating_point():
        return None
    sign = torch.arange(output.shape[-1], device=output.device) % 2 - 0.5
    return output + output * (sign * torch.finfo(output.dtype).eps).to(output.dtype)
