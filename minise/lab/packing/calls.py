"""A call of a model that packs documents, as `guard` reads it: which arguments it understands, and
which documents its rows hold."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from minise.attention import within
from minise.errors import InputError, one_line
from minise.lab.packing.formats import Given, as_tree, need
from minise.lab.packing.packing import meant_parents
from minise.layout import Layout

READ = {"input_ids": 2, "position_ids": 2, "attention_mask": 4}  # dimensions of each, at most
KNOWN = READ | {"cu_seq_lens_q": 1, "cu_seq_lens_k": 1, "seq_idx": 2}
# What logits do not depend on. With `fused_lm_head` a model of trl gives no logits, and without it
# those of the same hidden states.
UNUSED = ("labels", "num_items_in_batch", "logits_to_keep", "fused_lm_head")
BORDERS = {"cu_seq_lens_q": "cu_seqlens", "cu_seq_lens_k": "cu_seqlens_k"}


@dataclass(frozen=True)
class PackedRow:
    """A row of a call. fields: as `check` takes them. parents: of each token the row of the one
    before it in its document, -1 for a first one, -2 for padding. meant: their tree. window: that
    of its mask, if it hides anything."""

    fields: dict[str, Any]
    parents: list[int]
    meant: Layout
    window: int | None


@dataclass(frozen=True)
class Document:
    """Tokens of a row of a call that are one document, first to last."""

    row: int
    tokens: list[int]


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


def kind_of(given: dict[str, Any]) -> frozenset[Any]:
    """Which arguments a call has: the dimensions of tensors, and what is switched on or off."""
    kinds = []
    for name, value in given.items():
        if name not in UNUSED and value is not None:
            is_switch = isinstance(value, bool)
            kinds.append((name, value if is_switch else getattr(value, "ndim", 0)))
    return frozenset(kinds)


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
    if given.get("fused_lm_head"):
        call["use_cache"] = False  # as trl does then
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


def read_row(call: dict[str, Any], number: int, lengths: Any) -> PackedRow:
    """A row of a call. lengths: of its documents, if the user says them. Else its tree is what the
    mask says; where positions disagree, what they say."""
    fields: dict[str, Any] = {}
    for name in (*READ, "seq_idx"):
        if name in call:
            rows = call[name]
            fields[name] = rows[number % len(rows)]  # one may stand for all
    for name, field in BORDERS.items():
        if name in call:
            fields[field] = call[name]
    mask = fields.get("attention_mask")
    if mask is None:
        fields["restarts"] = "cu_seqlens" not in fields
    elif mask.ndim == 1 and (mask > 1).any():
        fields["mask_is"] = "segments"
    given = Given(fields, len(fields["input_ids"]))
    real = ~given.hidden
    if lengths is not None:
        parents = meant_parents({"documents": lengths, "input_ids": fields["input_ids"]})
        need_all(given, torch.tensor(parents) < -1, number)
        return PackedRow(fields, parents, as_tree(parents), window=None)
    positions = given.positions[0]
    before = last_before(given.mask & real)
    follows = real & (before >= 0)
    if not torch.equal(positions[follows], positions[before[follows]] + 1):
        # By positions, a token follows the last one that is a place before it, if all do. They may
        # also count the row as one document: no two tokens follow one.
        by_positions = last_before((positions[:, None] == positions + 1) & real)
        is_tree = ((by_positions >= 0) | (positions == 0))[real].all()
        if is_tree and len(by_positions[real].unique()) < int(real.sum()):
            before = by_positions
    parents = torch.where(real, before, -2).tolist()
    meant = as_tree(parents)
    return PackedRow(fields, parents, meant, window_of(given.mask, meant, real))


def need_all(given: Given, left_over: Tensor, number: int) -> None:
    """Refuse lengths that leave tokens out, but for padding: what nobody sees, and sees nobody."""
    if not left_over.any():
        return
    seen = given.mask & ~torch.eye(given.T, dtype=torch.bool)
    is_padding = given.hidden | ~(seen.any(dim=0) | seen.any(dim=1))
    rows = (left_over & ~is_padding).nonzero().flatten().tolist()
    if rows:
        wrong = (
            f"documents: leave out {len(rows):,} tokens of row {number}, from token {rows[0]} on"
        )
        need(False, f"{wrong}; give their lengths too, and hide padding by the attention_mask")


def last_before(cells: Tensor) -> Tensor:
    """The last column before the diagonal that is set in each row: (T,), -1 for none."""
    places = torch.arange(1, len(cells) + 1, dtype=torch.int32)
    return (cells.tril(-1) * places).amax(dim=1).long() - 1


def window_of(mask: Tensor, meant: Layout, real: Tensor) -> int | None:
    """The window of a mask that shows each token the last ones of its document, but not all."""
    depths = meant.positions
    most = int((mask & real[:, None]).sum(dim=1).amax())
    right = within(meant.mask & real, depths, depths, most)
    is_window = 0 < most <= int(depths.max()) and torch.equal(mask[real], right[real])
    return most if is_window else None
