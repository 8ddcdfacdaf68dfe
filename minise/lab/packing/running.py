"""Does a model give the documents of a call the logits of separate runs? Three questions are asked
of the model itself, in this order:

1. Do other tokens change a document? The call runs again with other tokens around it. In a kernel
   whose bits do not depend on what stands beside a row, nothing may change, not a bit.
2. Do the positions of the row matter? Where they are not 0, 1, 2, ... from some start, the call
   runs again with those that are.
3. Is a document as it is alone? Some run alone, and once more with the smallest errors that
   rounding can make, and once without their first token, which is what a border off by one does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from minise.errors import InputError, one_line
from minise.lab.packing.calls import Document
from minise.lab.packing.formats import need
from minise.lab.packing.rounding import NUDGES, Apart, Rounding, distances

ALONE = 3  # documents that run alone, at most
EQUAL = 1  # times the measured rounding: not more is equal. docs/check.md says why
WRONG = 2  # times the measured rounding: more is not equal. Between the two there is no verdict
UNEQUAL = "packed is not equal to separate"


class Model:
    """A module, without the hooks of the module itself."""

    def __init__(self, module: nn.Module) -> None:
        self.module: Any = module

    def logits(self, call: dict[str, Any]) -> Tensor:
        """(batch, T, V). Raises InputError if the model fails, or gives none of all tokens."""
        try:
            output = self.module.forward(**call)
        except Exception as error:  # whatever a model raises: no reason to stop a training
            what = f"{type(error).__name__}: {one_line(error)}"
            size = "x".join(str(size) for size in call["input_ids"].shape)
            raise InputError(f"the model fails when it runs {size} tokens anew: {what}") from None
        logits = output if isinstance(output, Tensor) else output[0]
        is_table = isinstance(logits, Tensor) and logits.shape[:2] == call["input_ids"].shape
        need(is_table, "the model gives no logits or hidden states of all tokens")
        return logits


@dataclass
class Looked:
    """What was found. words: the first mismatch, and its document. doubt: why there is no verdict
    on one. compared: how many documents ran alone."""

    document: Document
    words: str = ""
    doubt: str = ""
    compared: int = 0


@dataclass(frozen=True, eq=False)
class Packed:
    """A call, and what it gave. touched: by the number of a document, how far other tokens moved
    each of its own; only of those that were moved. moved: documents of which the call's positions,
    that are not in order, change the logits."""

    call: dict[str, Any]
    logits: Tensor
    touched: dict[int, Tensor]
    moved: list[int]


def look_at(model: Model, call: dict[str, Any], documents: list[Document]) -> Looked:
    """Compare documents of a call with separate runs. Raises InputError if the model fails."""
    logits = model.logits(call)
    touched = touched_by_others(model, call, logits, documents)
    moved = moved_by_positions(model, call, logits, documents)
    packed = Packed(call, logits, touched, moved)
    numbers = chosen(documents, packed)
    looked = Looked(documents[numbers[0]])
    for number in numbers:
        found = compare(model, packed, documents, number)
        looked.compared += 1
        looked.doubt = looked.doubt or found.doubt
        if found.words:
            looked.words = found.words
            looked.document = found.document
            break
    return looked


def chosen(documents: list[Document], packed: Packed) -> list[int]:
    """The numbers of the documents that run alone: the longest, that which others move most, those
    whose positions matter, and others spread over all."""
    count = len(documents)
    numbers = list(range(count))
    first = [max(numbers, key=lambda number: len(documents[number].tokens))]
    if packed.touched:
        first.append(max(packed.touched, key=lambda number: float(packed.touched[number].amax())))
    first += packed.moved
    step = max(1, count // ALONE)
    return list(dict.fromkeys([*first, *numbers[::-1][::step]]))[:ALONE]


# ---- 1. other tokens


def touched_by_others(
    model: Model, call: dict[str, Any], logits: Tensor, documents: list[Document]
) -> dict[int, Tensor]:
    """How far other tokens move each token of a document, for all documents. By each digit of the
    binary numbers of the documents those with a 0 stay, and all others are replaced, and the other
    way round: so each document is seen beside others of each."""
    ids = call["input_ids"]
    touched: dict[int, Tensor] = {}
    for numbers in groups(len(documents)):
        stays = torch.zeros_like(ids, dtype=torch.bool)
        for number in numbers:
            stays[documents[number].row, documents[number].tokens] = True
        if stays.all():
            continue
        others = model.logits(call | {"input_ids": torch.where(stays, ids, replaced(ids))})
        for number in numbers:
            one = documents[number]
            before = logits[one.row, one.tokens]
            after = others[one.row, one.tokens]
            if not torch.equal(before, after):
                apart = distances(before, after)
                touched[number] = torch.maximum(apart, touched.get(number, apart))
    return touched


def groups(count: int) -> list[list[int]]:
    """Groups of 0, 1, ..., count - 1: of each two there is a group with the one and without the
    other. At most 2 log2(count) + 1."""
    numbers = range(count)
    if count == 1:
        return [[0]]
    found = []
    for digit in range((count - 1).bit_length()):
        for value in (0, 1):
            found.append([number for number in numbers if (number >> digit) % 2 == value])
    return found


def replaced(ids: Tensor) -> Tensor:
    """Other tokens, each of which stands elsewhere in the call: the model knows them."""
    kinds, which = ids.unique(return_inverse=True)
    return kinds[(which + 1) % len(kinds)]


def bits_vary(model: Model, packed: Packed) -> bool:
    """Whether the logits of a row change in their last bits with what stands beside it, as with
    experts: asked of the first tokens of the call, which no causal model moves by later ones."""
    ids = packed.call["input_ids"]
    T = ids.shape[1]
    for eighth in range(1, 8):
        first = eighth * T // 8
        other = ids.clone()
        other[:, first:] = replaced(ids)[:, first:]
        logits = model.logits(packed.call | {"input_ids": other})
        if not torch.equal(packed.logits[:, :first], logits[:, :first]):
            return True
    return False


# ---- 2. positions


def moved_by_positions(
    model: Model, call: dict[str, Any], logits: Tensor, documents: list[Document]
) -> list[int]:
    """Documents whose positions are not in order, where the model gives others if they are."""
    given = call.get("position_ids")
    if given is None:
        return []
    rows = call["input_ids"].shape
    ordered = given.expand(rows).clone()
    suspects = []
    for number, one in enumerate(documents):
        places = torch.arange(len(one.tokens), device=ordered.device)
        shift = ordered[one.row, one.tokens] - places
        if (shift != shift[0]).any():
            suspects.append(number)
    if not suspects:
        return []
    for one in documents:
        ordered[one.row, one.tokens] = torch.arange(len(one.tokens), device=ordered.device)
    right = model.logits(call | {"position_ids": ordered})
    found = []
    for number in suspects:
        one = documents[number]
        if not torch.equal(logits[one.row, one.tokens], right[one.row, one.tokens]):
            found.append(number)
    return found


# ---- 3. alone


def compare(model: Model, packed: Packed, documents: list[Document], number: int) -> Looked:
    """A document alone, beside the packed one."""
    one = documents[number]
    alone = alone_of(packed.call, one)
    right = model.logits(alone)[0]
    where = f"in row {one.row} the logits of the document up to token {one.tokens[-1]}"
    found = Looked(one)
    if not right.isfinite().all():
        found.doubt = "the logits of a document alone are not finite"
        return found
    rounding = measured(model, alone, right)
    apart = rounding.beside(distances(right, packed.logits[one.row, one.tokens]))
    touched = None
    if number in packed.touched:
        touched = rounding.beside(packed.touched[number])

    if not apart.within(WRONG):
        found.words = f"{UNEQUAL}: {where} are {off(apart)}"
    elif touched is not None and not touched.within(WRONG):
        found.words = f"{UNEQUAL}: {where} change with other tokens, {off(touched)}"
    elif number in packed.moved:
        positions = "the positions of the row, which are not those of the document alone"
        found.words = f"{UNEQUAL}: {where} change with {positions}"
    elif not apart.within(EQUAL):
        found.doubt = f"{where} are {off(apart)}: too near to tell"
    elif touched is not None and not bits_vary(model, packed):
        found.doubt = f"{where} change with other tokens, {off(touched)}: a leak, if a small one"
    else:
        found.doubt = doubt_of_border(model, alone, right, rounding)
    return found


def off(apart: Apart) -> str:
    times = max(apart.typical, apart.furthest)
    return f"off by {apart.size:.1e} of their size, {times:.2g} times what rounding explains"


def alone_of(call: dict[str, Any], one: Document) -> dict[str, Any]:
    """The call of a document alone."""
    ids = call["input_ids"]
    alone: dict[str, Any] = {}
    for name, value in call.items():
        if isinstance(value, bool | str):
            alone[name] = value
    alone["input_ids"] = ids[one.row, one.tokens][None]
    alone["position_ids"] = torch.arange(len(one.tokens), device=ids.device)[None]
    return alone


def measured(model: Model, alone: dict[str, Any], right: Tensor) -> Rounding:
    """What rounding does to a document alone."""
    found = []
    for nudge in NUDGES:
        with nn.modules.module.register_module_forward_hook(nudge):
            found.append(distances(right, model.logits(alone)[0]))
    return Rounding(torch.stack(found), torch.finfo(right.dtype).eps)


def doubt_of_border(model: Model, alone: dict[str, Any], right: Tensor, rounding: Rounding) -> str:
    """Why the numbers cannot tell a document from one whose border is off by one; none if they
    can."""
    T = len(right)
    if T == 1:
        return ""
    later = alone | {"input_ids": alone["input_ids"][:, 1:]}
    later["position_ids"] = alone["position_ids"][:, :-1]
    shifted = rounding.beside(distances(right[1:], model.logits(later)[0]))
    if shifted.typical > EQUAL:
        return ""
    without = f"without its first token a document of {T:,} tokens is off by {shifted.typical:.2g}"
    return f"rounding is too large: {without} times what rounding explains, so no border is sure"
