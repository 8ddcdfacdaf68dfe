"""Who may attend to whom, in the forms that libraries hold it in: each becomes one mask (T, T), or
the number of a segment for each token, (T,): then the mask is causal in each segment.

docs/check.md has where each library's rule is written. A new form is a function and its line of
MASKS; if the mask contains the window, a line of HOLD_THE_WINDOW too; and a line of `forms` in
tests/lab/packing/test_oracle.py.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from minise.attention import within
from minise.errors import InputError, one_line
from minise.layout import Layout, causal_mask
from minise.memory import free_bytes

AXES = (1, 3, 4)  # of positions: M-RoPE has time, height, width; before them those of texts
HIDDEN = -1e3  # an additive mask of this, relative to the row's largest, gives the weight 0
MASKS_SIZE = 10  # bytes that a cell of the masks takes that are compared
ANY: tuple[int, ...] = ()  # a dimension of any size
DTYPES = (
    *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
)


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong. what: "mask", "positions", "labels", or the field of borders:
    "cu_seqlens" and those beside it. words: the first wrong place, and what explains it. name: the
    known mistake, if one does. wrong of `of` places are wrong. mend: what to do."""

    what: str
    words: str
    name: str
    wrong: int
    of: int
    mend: str


# ---- reading values


def need(holds: object, message: str) -> None:
    """Raise InputError if it does not hold."""
    if not holds:
        raise InputError(message)


def need_memory(T: int, size: int) -> None:
    """Refuse a row of T tokens that needs more than is free. size: bytes."""
    free = free_bytes()
    most = f"{T:,} tokens need {size / 2**30:.1f} GiB of memory; check a shorter row"
    need(free is None or size <= free, most)


def depth_of(value: Any) -> int:
    """The dimensions of a tensor or array, or how deep lists lie in one another."""
    depth = 0
    while isinstance(value, list | tuple):
        depth += 1
        value = value[0] if value else None
    return depth + int(getattr(value, "ndim", 0))


def numbers(name: str, value: Any) -> Tensor:
    """A tensor without its leading dimensions of 1."""
    try:
        tensor = torch.as_tensor(value).detach().cpu()
    except (TypeError, ValueError, RuntimeError, OverflowError, RecursionError) as error:
        raise InputError(f"{name}: is no table of numbers ({one_line(error)}); fix it") from None
    if tensor.dtype in (torch.uint16, torch.uint32, torch.uint64):  # which torch does not compare
        tensor = tensor.long()
    is_read = tensor.dtype in DTYPES and tensor.layout == torch.strided
    need(is_read, f"{name}: holds {tensor.dtype}; give bool, int64 or float32, in a dense tensor")
    is_table = tensor.numel() and tensor.dim()
    need(is_table, f"{name}: is empty or no table; leave it out, or give a number for each token")
    while tensor.dim() > 1 and len(tensor) == 1:
        tensor = tensor[0]
    return tensor


def integers(name: str, value: Any, *shape: Collection[int], span: range | None = None) -> Tensor:
    """int64, each in `span`. shape: for each dimension the sizes that it may have: [T] for a number
    for each token; ANY, [2] for pairs. What would not fit is refused before it is widened."""
    tensor = numbers(name, value)
    if tensor.dim() < len(shape):
        tensor = tensor[None]
    is_whole = tensor.dtype != torch.bool and not tensor.is_floating_point()
    if not is_whole or not has_shape(tensor, shape):
        sizes = [" or ".join(map(str, allowed)) or "N" for allowed in shape]
        holds = f"{tensor.dtype} of the shape {tuple(tensor.shape)}"
        raise InputError(f"{name}: holds {holds}; give {' x '.join(sizes)} integers, for one row")
    free = free_bytes()
    fits = free is None or 32 * tensor.numel() <= free
    need(fits, f"{name}: its {tensor.numel():,} numbers do not fit in memory; cut it to one row")
    tensor = tensor.long()
    if span is not None:
        for number in (int(tensor.min()), int(tensor.max())):
            wanted = f"give numbers from {span[0]} to {span[-1]}"
            need(number in span, f"{name}: holds {number}; {wanted}")
    return tensor


def has_shape(tensor: Tensor, shape: tuple[Collection[int], ...]) -> bool:
    if tensor.dim() != len(shape):
        return False
    for size, allowed in zip(tensor.shape, shape, strict=True):
        if allowed and size not in allowed:
            return False
    return True


def parents_of(name: str, value: Any, T: int, least: int) -> list[int]:
    """The row before each token. Refuse one that is no row before it."""
    parents: list[int] = integers(name, value, [T]).tolist()
    roots = " or ".join(str(number) for number in range(least, 0))
    for row, parent in enumerate(parents):
        wrong = f"{name}: token {row} has the parent {parent}"
        need(least <= parent < row, f"{wrong}; give the row of a token before it, or {roots}")
    return parents


def as_tree(parents: list[int], tokens: Tensor | None = None) -> Layout:
    """The tree of the rows before each token. One that is below -1, a token of no prompt, is a root
    at which no prompt ends."""
    depths: list[int] = []
    for parent in parents:
        depths.append(depths[parent] + 1 if parent >= 0 else 0)
    inner = set(parents)
    ends = []
    for row, parent in enumerate(parents):
        if parent >= -1 and row not in inner:
            ends.append(row)
    before = torch.tensor(parents).clamp(min=-1)
    if tokens is None:
        tokens = before  # any will do
    return Layout(tokens, before, torch.tensor(depths), torch.tensor(ends))


# ---- what a model is given


class Given:
    """What a model is given of a row of T tokens, by the fields of docs/check.md. positions: (A, T)
    int64, where A is 1, or more for M-RoPE. has_row_mask: there is a row of 0 and 1; hidden: (T,)
    bool, what it hides. segments: (T,) int64, if all that it says are segments (and `hidden`): a
    token may attend to those of its own segment up to itself. biased: (T, T) bool, to what an
    additive mask adds less than to another that the token may attend to; None without one. faults:
    of the fields that say so. source: the field of MASKS that is given, if one is."""

    def __init__(self, fields: Mapping[str, Any], T: int, batch_row: int = 0) -> None:
        self.fields = fields
        self.T = T
        self.batch_row = batch_row
        self.index = torch.arange(T)
        self.positions = integers("position_ids", fields.get("position_ids", self.index), AXES, [T])
        self.faults: list[Finding] = []
        self.hidden = torch.zeros(T, dtype=torch.bool)
        self.biased: Tensor | None = None
        sources = [name for name in MASKS if fields.get(name, False) is not False]

        # An attention mask of one row is either the documents of the tokens, or it hides padding
        # and stands beside another source, or none.
        kind = fields.get("mask_is")
        row = self._mask_of_one_row(is_alone=len(sources) == 1)
        if row is not None:
            self.hidden = row == 0
            is_of_0_and_1 = bool((row == ~self.hidden).all())
            is_said = kind in ("bool", "segments") or (kind is None and is_of_0_and_1)
            how = "give mask_is, segments if it makes documents of it, or bool"
            fits = is_said and len(row) == T
            need(fits, f"attention_mask: holds no {T} numbers of 0 and 1; {how}")
            if kind != "segments":
                sources.remove("attention_mask")
        self.has_row_mask = row is not None and kind != "segments"
        both = " and ".join(sources[:2])
        need(len(sources) < 2, f"{both} both say who may attend to whom; give the one that is used")

        source = sources[0] if sources else None
        self.source = source
        # Without any, the whole row is one segment.
        if source in TABLES and kind != "segments":
            need_memory(T, MASKS_SIZE * T**2)
        shown = torch.zeros_like(self.index) if source is None else MASKS[source](self)
        self.shown = shown
        self.counted_by: Tensor | None = None  # by which a window is still to be counted
        if source not in HOLD_THE_WINDOW or kind == "segments":
            # Kernels count a window by index; who walks a tree knows positions.
            self.counted_by = self.positions[0] if source == "parents" else self.index
        has_window = "window" in fields
        self.segments = shown if shown.dim() == 1 and not has_window else None

    @cached_property
    def mask(self) -> Tensor:
        """(T, T) bool: who may attend to whom. Refuses one that does not fit in memory."""
        mask = self.shown
        if mask.dim() == 1:
            need_memory(self.T, MASKS_SIZE * self.T**2)
            mask = causal_mask(self.T) & (mask[:, None] == mask)
        if self.counted_by is not None:
            mask = within(mask, self.counted_by, self.counted_by, self.fields.get("window"))
        return mask & ~self.hidden

    def _mask_of_one_row(self, is_alone: bool) -> Tensor | None:
        value = self.fields.get("attention_mask")
        depth = depth_of(value)
        if depth not in (1, 2):
            return None
        if self.T == 1 and depth == 2 and is_alone and self.fields.get("mask_is") != "segments":
            return None  # 1 x 1 is square
        row = numbers("attention_mask", value)
        return row if row.dim() == 1 else None

    def ids(self, name: str, default: Any = ()) -> Tensor:
        """The integers of a field, one for each token."""
        return integers(name, self.fields.get(name, default), [self.T])

    def fault(self, wrong: Tensor, words: str, name: str, mend: str) -> None:
        """A finding, if a cell of `wrong` (T, T) is set. words: of its row and column."""
        if not wrong.any():
            return
        row, column = wrong.nonzero()[0].tolist()
        said = f"{words.format(row, column)}: {name}"
        self.faults.append(Finding("mask", said, name, int(wrong.sum()), wrong.numel(), mend))


# ---- the forms: what a model is given -> its mask (T, T), or segments (T,)


def read_attention_mask(given: Given) -> Tensor:
    """A row for each query (bool, 0 and 1, or added to the scores), a BlockMask, or segments."""
    value = given.fields["attention_mask"]
    kind = given.fields.get("mask_is")
    if hasattr(value, "mask_mod"):
        return read_blocks(given, value)
    if kind == "segments":
        return given.ids("attention_mask")
    mask = numbers("attention_mask", value)
    if mask.dim() < 2:  # T is 1
        mask = mask[None]
    T = given.T
    shape = "x".join(str(size) for size in mask.shape)
    fits = mask.shape == (T, T)
    need(fits, f"attention_mask: has the shape {shape}; give {T}x{T}, of one head")
    need(not mask.isnan().any(), "attention_mask: holds NaN; give numbers, or true and false")
    is_additive = mask.is_floating_point() if kind is None else kind == "additive"
    if not is_additive:
        return mask != 0
    # A softmax sees what is not far below the row's largest. Only minus infinity gives NaN.
    added = mask.float()
    shown = added - added.amax(dim=1, keepdim=True) >= HIDDEN
    given.biased = shown & (mask < mask.amax(dim=1, keepdim=True))
    return shown


def read_function(given: Given, mask_mod: Any) -> Tensor:
    """mask_mod(batch, head, query, key) of FlexAttention, of head 0, on all pairs at once."""
    batch = torch.tensor(given.batch_row)
    head = torch.tensor(0)
    queries = given.index[:, None]
    try:
        shown = torch.as_tensor(mask_mod(batch, head, queries, given.index))
        return shown.bool().expand(given.T, given.T)
    except Exception as error:  # whatever a function of the user's own raises
        raise InputError(f"mask_mod: failed ({one_line(error)}); fix the function") from None


def read_mask_mod(given: Given) -> Tensor:
    return read_function(given, given.fields["mask_mod"])


def read_blocks(given: Given, block: Any) -> Tensor:
    """A BlockMask as flex_attention runs it: its mask_mod in partial blocks, all in full ones."""
    T = given.T
    fits = tuple(block.shape[1:]) == (1, T, T)
    shape = f"is a BlockMask of {tuple(block.shape)}; give one head, {T}x{T}"
    need(fits, f"attention_mask: {shape}")

    def cells(number: Any, index: Any) -> Tensor:
        made = type(block).from_kv_blocks(number, index, BLOCK_SIZE=block.BLOCK_SIZE)
        blocks = made.to_dense().cpu().bool()[:, 0]
        # One batch row may stand for all.
        dense = blocks[min(given.batch_row, len(blocks) - 1)]
        for dim, size in enumerate(block.BLOCK_SIZE):
            dense = dense.repeat_interleave(size, dim)
        return dense[:T, :T]

    said = read_function(given, block.mask_mod)
    mask = cells(block.kv_num_blocks, block.kv_indices) & said
    if block.full_kv_num_blocks is not None:
        mask |= cells(block.full_kv_num_blocks, block.full_kv_indices)
    name = "the blocks of the BlockMask are not those of its mask_mod"
    words = "token {} and token {} are not as its mask_mod says"
    given.fault(mask != said, words, name, "make it anew with create_block_mask")
    return mask


def read_cu_seqlens(given: Given) -> Tensor:
    """0 and the ends of the documents."""
    T = given.T
    borders = integers("cu_seqlens", given.fields["cu_seqlens"], ANY)
    lengths = borders.diff()

    words = ""
    name = ""
    if len(borders) < 2 or borders[0] != 0 or borders[-1] != T:
        name = "cu_seqlens has a wrong total"
        words = f"it goes from {borders[0]} to {borders[-1]}, but the row has {T:,} tokens"
    elif (lengths < 1).any():
        name = "cu_seqlens has an empty document"
        first = int((lengths < 1).nonzero()[0]) + 1
        words = f"its document {first} has {lengths.min()} tokens"
    if name:
        mend = f"begin it with 0, add the length of each document, and end it at {T:,}, the tokens"
        fault = Finding("cu_seqlens", f"{words}: {name}", name, 1, len(borders), mend)
        given.faults.append(fault)

    segments = -1 - given.index  # a token of no document is alone
    for number, (start, length) in enumerate(zip(borders, lengths, strict=False)):
        segments[start : start + length] = number
    return segments


def read_segment_ids(given: Given) -> Tensor:
    return given.ids("segment_ids")


def read_parents(given: Given) -> Tensor:
    parents = parents_of("parents", given.fields["parents"], given.T, -1)
    return as_tree(parents).mask


def read_restarts(given: Given) -> Tensor:
    """A position that does not follow the one before begins a document. As transformers reads them:
    a mask of 0 and 1 beside them switches that off."""
    if given.has_row_mask:
        return torch.zeros_like(given.index)
    steps = given.positions[0].diff(prepend=given.index[:1])
    return (steps != 1).cumsum(0)


MASKS: dict[str, Callable[[Given], Tensor]] = {
    "attention_mask": read_attention_mask,
    "mask_mod": read_mask_mod,
    "cu_seqlens": read_cu_seqlens,
    "segment_ids": read_segment_ids,
    "parents": read_parents,
    "restarts": read_restarts,
}
HOLD_THE_WINDOW = ("attention_mask", "mask_mod")
TABLES = (*HOLD_THE_WINDOW, "parents")  # those that are read as masks (T, T)
