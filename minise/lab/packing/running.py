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

import inspect
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from minise.lab.packing.caller import place_of_call
from minise.lab.packing.calls import Document, Model, PackedRow
from minise.lab.packing.changes import bits_vary, moved_by_positions, touched_by_others
from minise.lab.packing.judging import check
from minise.lab.packing.recurrent import layer_that_carries
from minise.lab.packing.rounding import NUDGES, Apart, Rounding, distances

ALONE = 3  # documents that run alone, at most
EQUAL = 1  # times the measured rounding: not more is equal. docs/check.md says why
WRONG = 2  # times the measured rounding: more is not equal. Between the two there is no verdict
POSITIONS = 128  # so many later, in float32: angles may add once the measured rounding
UNEQUAL = "packed is not equal to separate"


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


# ---- alone


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
    apart = apart_from(model, packed, one, right, rounding)
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
    elif touched is not None and not bits_vary(model, packed.call, packed.logits):
        found.doubt = f"{where} change with other tokens, {off(touched)}: a leak, if a small one"
    else:
        found.doubt = doubt_of_border(model, alone, right, rounding)
    return found


def apart_from(
    model: Model, packed: Packed, one: Document, right: Tensor, rounding: Rounding
) -> Apart:
    """How far a document is from itself alone. Rotary angles are rounded by as much as positions
    are large: one that stands at later positions in the row is compared with itself alone at these,
    if that is what it is from 0 on, within the rounding of angles."""
    given = packed.logits[one.row, one.tokens]
    apart = rounding.beside(distances(right, given))
    shift = shift_of(packed.call, one)
    if shift == 0 or apart.within(EQUAL):
        return apart
    later = alone_of(packed.call, one)
    later["position_ids"] = later["position_ids"] + shift
    there = model.logits(later)[0]
    units = torch.finfo(torch.float32).eps / torch.finfo(right.dtype).eps  # that angles have
    most = EQUAL * (1 + int(later["position_ids"].max()) / POSITIONS * units)
    is_same = rounding.beside(distances(right, there)).typical <= most
    return rounding.beside(distances(there, given)) if is_same else apart


def shift_of(call: dict[str, Any], one: Document) -> int:
    """How much later all positions of a document are in the call than alone; 0 if they differ in
    that."""
    places = torch.tensor(one.tokens)
    given = call.get("position_ids")
    if given is not None:
        places = given.expand(call["input_ids"].shape)[one.row, one.tokens].cpu()
    shift = places - torch.arange(len(places))
    return int(shift[0]) if (shift == shift[0]).all() else 0


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


# ---- in words


def explained(model: Model, call: dict[str, Any], document: Document, row: PackedRow) -> str:
    """What may explain a mismatch: a cache, a window, and what `check` says of the row."""
    lines = [f"the call: {place_of_call()}"]
    takes_cache = "use_cache" in inspect.signature(model.module.forward).parameters
    if takes_cache and call.get("use_cache") is not False:
        without = call | {"use_cache": False}
        if not look_at(model, without, [document]).words:
            lines.append("use_cache explains it: with use_cache=False the two are equal")
    fields = dict(row.fields)
    if row.window is not None:
        fields["window"] = row.window
        alone = "a document alone has the model's own, or none"
        lines.append(f"the mask holds a window of {row.window} tokens: {alone}")
    report = check(tree=row.parents, **fields)
    if report.equal and row.window is None:
        said_by = [name for name in ("attention_mask", "cu_seqlens") if name in fields]
        source = [*said_by, "position_ids"][0]
        lines.append(f"the row is right, and the model does not go by its {source}")
        lines += layer_that_carries(model.module, call, alone_of(call, document), document)
    row_alone = replace(report, conditions=())  # the model was run
    lines.append(f"the given row: {row_alone}")
    return "\n".join(lines)
