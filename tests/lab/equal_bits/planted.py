"""Faults of the decoder of equal bits alone, planted as those of tests/reference/verify/planted.py
are. `minise verify` and the proof must find each."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

import minise.lab.equal_bits.attention as fixed
from minise.lab.equal_bits.decoder import EqualBits
from minise.layout import causal_mask
from tests.reference.verify.planted import Patch, Plant, everywhere, tiled

OF_BITS: dict[str, Plant] = {}
WINDOWED: set[str] = set()  # faults that only a sliding window shows


def of_attention(name: str, change: Any) -> None:
    """The attention of a call, which is given other arguments."""

    def plant(patch: Patch) -> None:
        real = fixed.attention_call
        patch.setattr(fixed, "attention_call", lambda *given: real(*change(*given)))

    OF_BITS[name] = plant


of_attention("query heads of equal bits are tiled", lambda q, k, v, mask: (tiled(q, k), k, v, mask))
of_attention("scores of equal bits are scaled", lambda q, k, v, mask: (q * 1.01, k, v, mask))


def plant_logits(patch: Patch) -> None:
    """In all engines."""
    real = EqualBits.logits
    patch.setattr(EqualBits, "logits", lambda self, hidden: real(self, hidden) * 1.001)


OF_BITS["logits of equal bits are 0.1% too large"] = plant_logits


# ---- the calls of equal bits


def of_call(name: str, leaks: bool, separate: bool = False) -> None:
    """One cell of the call in which the last end is a query, in packed runs and, if `separate`, in
    a separate run too. It hides a key that is seen, or shows another prompt's."""

    def plant(patch: Patch) -> None:
        real = fixed.reader_of

        def faulty(mask: Tensor, *given: Any) -> fixed.Reader:
            made = real(mask, *given)
            if separate or not torch.equal(mask, causal_mask(len(mask))):
                made.calls = [changed(call, mask) for call in made.calls]
            return made

        everywhere(patch, real, faulty)

    def changed(call: fixed.Calls, mask: Tensor) -> fixed.Calls:
        last = len(mask) - 1
        if call.far or not (call.queries == last).any():
            return call
        item, place = (call.queries == last).nonzero()[0].tolist()
        keys, N = call.keys.clone(), len(call.queries)
        itself = int((keys[item] == last).nonzero()[0])
        if leaks:
            keys[item, itself - 3] = (~mask[last]).nonzero().flatten()[0]
            return replace(call, keys=keys)
        cells = call.seen(None).expand(N, -1, -1).clone()
        cells[item, place:, itself - 2] = False  # the last query fills empty places
        return replace(call, mask=cells)

    OF_BITS[name] = plant


of_call("an end reads a row of another prompt with equal bits", leaks=True)
of_call("a cell is missing in a call of packed and tree", leaks=False)
of_call("a cell is missing in a call of every run", leaks=False, separate=True)


def of_fixed_windows(name: str, more: int) -> None:
    """Readers of equal bits whose windows are wider by `more`, in packed runs."""

    def plant(patch: Patch) -> None:
        real = fixed.reader_of

        def reader(mask: Tensor, *given: Any) -> fixed.Reader:
            made = real(mask, *given)
            if not torch.equal(mask, causal_mask(len(mask))):
                made.windows = tuple(None if w is None else w + more for w in made.windows)
            return made

        everywhere(patch, real, reader)

    WINDOWED.add(name)
    OF_BITS[name] = plant


of_fixed_windows("the window of equal bits is one more", 1)
of_fixed_windows("the window of equal bits is one less", -1)
