"""Another's packed row: what was meant, and what a model is given (formats.py). Tokens are counted
from 0, documents and branches from 1; docs/check.md has the fields. judging.py compares the two.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from difflib import get_close_matches
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from minise.attention import within
from minise.errors import quote
from minise.lab.packing import formats
from minise.lab.packing.formats import (
    ANY,
    MASKS_SIZE,
    Given,
    as_tree,
    depth_of,
    integers,
    need,
    need_memory,
    numbers,
    parents_of,
)
from minise.layout import Layout

MEANT = ("documents", "branches", "tree")  # one of them; branches with a trunk
# The first of these that is given says how many tokens the row has.
ROWS = ("input_ids", "position_ids", "attention_mask", "segment_ids", "parents", "labels", "tree")
CHOICES: dict[str, Any] = {  # what a word or a number may be
    "padding": ("right", "left"),
    "mask_is": ("bool", "additive", "segments"),
    "labels_are": ("unshifted", "shifted"),
    "restarts": (True, False),
    "trunk": range(2**31),
    "window": range(1, 2**31),
}
# What collators give beside the borders, and which must agree with them (beside.py).
BORDERS = ("cu_seqlens_k", "cu_seqlens_unpadded", "cu_seqlens_unpadded_k")
BESIDE = (*BORDERS, "max_seqlen", "max_seqlen_k", "seq_idx")
WITH = (*BESIDE, "loss_mask")
MORE = ("padded", "positions_alone", *ROWS, *CHOICES, *formats.MASKS, *WITH)
FIELDS = tuple(dict.fromkeys(MEANT + MORE))
IGNORED = -100  # the label of a token that is no target, as in torch's cross_entropy
TOKEN_SIZE = 500  # bytes that a token takes in the lists and tensors of a row, at most
NONE, PADDING = -2, -3  # parents of a token of no prompt, and of one that is said to be padding


class Packing(Given):
    """A row beside what was meant. Raises InputError for a malformed one. meant: a token of no
    prompt is a root by itself. real: (T,) bool, False for such a token; padding: (T,) bool, those
    that the row says are padding. places: the positions that should be given. parts: (T,) int64,
    which unbranched stretch a token is of. names: theirs. labels: (T,) int64, IGNORED where
    loss_mask is 0."""

    def __init__(self, fields: Mapping[str, Any], batch_row: int = 0) -> None:
        check_words(fields)
        meant = meant_parents(fields)
        super().__init__(fields, len(meant), batch_row)
        self.labels = self.ids("labels", torch.full_like(self.index, IGNORED))
        if "loss_mask" in fields:
            weights = numbers("loss_mask", fields["loss_mask"])
            fits = weights.shape == (self.T,)
            need(fits, f"loss_mask: has the shape {tuple(weights.shape)}; give {self.T} numbers")
            self.labels = torch.where(weights == 0, IGNORED, self.labels)
        self.meant = as_tree(meant, self.ids("input_ids", self.index))
        parents = torch.tensor(meant)
        self.real = parents > NONE
        self.padding = (parents == PADDING) | (~self.real & self.hidden)
        depth = self.meant.positions
        alone = fields.get("positions_alone", depth)
        places = integers("positions_alone", alone, {1, len(self.positions)}, [self.T])
        self.places = places.expand_as(self.positions)
        self.parts, self.names = stretches(self.meant, self.real.tolist())

    @cached_property
    def right(self) -> Tensor:
        """(T, T) bool: the mask that should be given. Refuses one that does not fit in memory."""
        need_memory(self.T, MASKS_SIZE * self.T**2)
        depth = self.meant.positions
        return within(self.meant.mask & self.real, depth, depth, self.fields.get("window"))

    def token(self, row: int) -> str:
        """A token in words, such as "token 14, the first of document 3,"."""
        if not self.real[row]:
            return f"token {row}, which is padding,"
        part = self.parts[row]
        name = self.names[int(part)]
        rows = (self.parts == part).nonzero().flatten().tolist()
        if row == rows[0]:
            return f"token {row}, the first of {name},"
        if row == rows[-1]:
            return f"token {row}, the last of {name},"
        return f"token {row} of {name}"


# ---- batches


def rows_of_batch(given: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The fields of each row of a batch, in which what was meant has a list for each row. The
    others have one for each too, or one for all."""
    for name, value in given.items():
        if isinstance(value, Tensor):
            is_dense = value.layout == torch.strided and not value.is_nested
            need(is_dense, f"{name}: is a sparse or nested tensor; give a dense one")
    count = 0
    for name in MEANT:
        if depth_of(given.get(name)) > 1:
            count = max(count, len(given[name]))
        if name in given and depth_of(given.get("input_ids")) == 2:
            need_rows(name, given[name], len(given["input_ids"]))
    if count == 0:
        return [dict(given)]
    rows = []
    for row in range(count):
        rows.append({name: value_of_row(name, value, row, count) for name, value in given.items()})
    return rows


def need_rows(name: str, lengths: Any, count: int) -> None:
    """Refuse what was meant for another number of rows than `count`."""
    is_flat = depth_of(lengths) < 2
    meant = 1 if is_flat else len(lengths)
    said = "1 row meant in a flat list" if is_flat else f"{meant} rows meant"
    mend = "give a list for each row"
    need(meant == count, f"{name}: {said}, the batch has {count}; {mend}")


def value_of_row(name: str, value: Any, row: int, count: int) -> Any:
    """The value of a field in this row of a batch of `count`."""
    depth = depth_of(value)
    if name.startswith("position") and depth == 3:  # M-RoPE: (3, batch, tokens)
        value = numbers(name, value)
        if value.dim() == 3:
            return value[:, row : row + 1].flatten(1)
        depth = value.dim()
    depth_of_one = 0 if name == "trunk" else 1  # trunk is a number, others are lists
    if depth <= depth_of_one or len(value) != count:
        return value  # one for all
    if name not in ("documents", "branches", "padded"):
        return value[row]
    lengths = integers(name, value[row], ANY)
    return lengths[lengths != 0]  # in a table, rows are filled up with 0


# ---- what was meant


def check_words(fields: Mapping[str, Any]) -> None:
    """Refuse unknown fields, and words and numbers that say nothing."""
    for name in sorted(fields.keys() - set(FIELDS)):
        close = get_close_matches(name, FIELDS, 1)
        near = f"give it as {close[0]} if it is that, or " if close else ""
        hint = f"{near}leave it out if no border depends on it"
        need(False, f"{quote(name)} is unknown; the fields are {', '.join(FIELDS)}; {hint}")
    for name, allowed in CHOICES.items():
        value = fields.get(name, allowed[0])
        is_number = isinstance(allowed, range)
        if is_number:
            wanted = f"a number from {allowed[0]}"
        else:
            wanted = " or ".join(str(choice).lower() for choice in allowed)
        fits = type(value) is type(allowed[0]) and value in allowed
        need(fits, f"{name}: is {quote(value)}; give {wanted}")
    is_needed = "branches" in fields or not fields.get("trunk")
    need(is_needed, "trunk: comes without branches; give their lengths")


def meant_parents(fields: Mapping[str, Any]) -> list[int]:
    """What was meant: the row of the token before each, -1 for a first one, -2 for a token of no
    prompt, -3 for one that is said to be padding."""
    kinds = [name for name in MEANT if name in fields]
    both = f"{' and '.join(kinds)} both say" if kinds else "nothing says"
    need(len(kinds) == 1, f"{both} what was meant; give one of {', '.join(MEANT)}")
    kind = kinds[0]
    given: list[int] = integers(kind, fields[kind], ANY).tolist()
    places: list[int] = integers("padded", fields.get("padded", given), [len(given)]).tolist()
    trunk = fields.get("trunk", 0)
    held = len(given) if kind == "tree" else trunk + sum(places)
    T = row_length(fields, held)
    need_memory(T, TOKEN_SIZE * T)

    is_left = fields.get("padding") == "left"
    left_over = PADDING if "padding" in fields else NONE
    if kind == "tree":
        return parents_of_tree(given, T, is_left, left_over)
    need(min(given) > 0, f"{kind}: holds the length {min(given)}; give them from 1")
    need(held <= T, f"{kind}: hold {held:,} tokens, but the row has {T:,}; fix the lengths")
    for length, place in zip(given, places, strict=True):
        need(length <= place, f"padded: does not hold the {kind}; give each with its padding")

    parents = [left_over] * (T - held) if is_left else []
    parents += chain(-1, len(parents), trunk)
    stem = len(parents) - 1 if trunk else -1  # what a document or branch begins below
    for length, place in zip(given, places, strict=True):
        parents += chain(stem, len(parents), length)
        parents += [PADDING] * (place - length)
    parents += [left_over] * (T - len(parents))
    return parents


def row_length(fields: Mapping[str, Any], held: int) -> int:
    """How many tokens the row has: as many as what was meant holds, if nothing else says it."""
    for name in ROWS:
        if name in fields:
            value = fields[name]
            is_block_mask = hasattr(value, "mask_mod")
            table = value if is_block_mask else numbers(name, value)
            return int(table.shape[-1])
    return held


def parents_of_tree(given: list[int], T: int, is_left: bool, left_over: int) -> list[int]:
    """The parents of a tree. Tokens of no prompt at the padded end of the row are `left_over`."""
    parents = parents_of("tree", given, T, NONE)
    for parent in parents:
        follows_none = parent >= 0 and parents[parent] == NONE
        need(not follows_none, "tree: a token follows padding (-2); give it a real parent, or -1")
    rows = range(T) if is_left else reversed(range(T))
    for row in rows:
        if parents[row] != NONE:
            break
        parents[row] = left_over
    return parents


def chain(before: int, start: int, length: int) -> list[int]:
    """The parents of so many tokens in a line from row `start` on: the first follows `before`."""
    return [before, *range(start, start + length - 1)] if length else []


def stretches(meant: Layout, real: list[bool]) -> tuple[Tensor, list[str]]:
    """The unbranched stretches: the number of each token's, and their names."""
    parents: list[int] = meant.parents.tolist()
    children = Counter(parent for parent in parents if parent >= 0)
    is_tree = any(count > 1 for count in children.values())
    counts = Counter[str]()
    parts: list[int] = []
    names: list[str] = []
    for row, parent in enumerate(parents):
        is_start = parent < 0 or parent != row - 1 or children[parent] > 1
        if is_start:
            kind = "document"
            if is_tree:
                kind = "trunk" if parent < 0 else "branch"
            counts[kind] += real[row]
            name = f"{kind} {counts[kind]}" if real[row] else "padding"
            names.append("the trunk" if name == "trunk 1" else name)
        parts.append(len(names) - 1)
    return torch.tensor(parts), names
