"""What changes the logits of packed documents: other tokens beside them, and positions in order. It
is asked of the model itself, in bits."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from minise.lab.packing.calls import Document, Model
from minise.lab.packing.rounding import distances


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


def bits_vary(model: Model, call: dict[str, Any], packed: Tensor) -> bool:
    """Whether the logits of a row change in their last bits with what stands beside it, as with
    experts: asked of the first tokens of the call, which no causal model moves by later ones."""
    ids = call["input_ids"]
    T = ids.shape[1]
    for eighth in range(1, 8):
        first = eighth * T // 8
        other = ids.clone()
        other[:, first:] = replaced(ids)[:, first:]
        logits = model.logits(call | {"input_ids": other})
        if not torch.equal(packed[:, :first], logits[:, :first]):
            return True
    return False


# ---- positions


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
