"""Who may attend to whom, in the forms that libraries hold it in: each becomes one mask (T, T).

docs/check.md has the fields, and where each library's rule is written. A new form is a function
here, a line of MASKS, and a line on that page.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from minise.attention import within
from minise.checks import free_bytes
from minise.errors import InputError, one_line
from minise.layout import Tree, causal_mask

HIDDEN = -1e3  # an additive mask of this, relative to the row's largest, gives the weight 0


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong. what: "mask", "positions", "labels" or "cu_seqlens". words: the
    first wrong place, and what explains it. name: the known mistake, if one does. wrong of `of`
    places are wrong. mend: what to do."""

    what: str
    words: str
    name: str
    wrong: int
    of: int
    mend: str


Found = tuple[Tensor, tuple[Finding, ...]]  # a mask, and what is wrong with its source


def need(holds: object, message: str) -> None:
    """Raise InputError if it does not hold."""
    if not holds:
        raise InputError(message)


def depth_of(value: Any) -> int:
    """The dimensions of a tensor or array, or how deep lists lie in one another."""
    if isinstance(value, list | tuple):
        return 1 + (depth_of(value[0]) if value else 0)
    return int(getattr(value, "ndim", 0))


def numbers(name: str, value: Any) -> Tensor:
    """A tensor without its leading dimensions of 1."""
    try:
        tensor = torch.as_tensor(value).detach().cpu()
    except (TypeError, ValueError, RuntimeError, OverflowError, RecursionError) as error:
        raise InputError(f"{name}: is no table of numbers ({one_line(error)}); fix it") from None
    is_table = tensor.numel() and tensor.dim() and not tensor.is_complex()
    need(is_table, f"{name}: is empty or no table; leave it out, or give a number for each token")
    while tensor.dim() > 1 and len(tensor) == 1:
        tensor = tensor[0]
    return tensor


def integers(name: str, value: Any, dim: int = 1) -> Tensor:
    """(T,) int64; dim=2: (N, T). What would not fit is refused before it is widened."""
    tensor, free = numbers(name, value), free_bytes()
    tensor = tensor[None] if tensor.dim() < dim else tensor
    is_whole = not (tensor.dtype == torch.bool or tensor.is_floating_point())
    holds = f"{tensor.dtype} of the shape {tuple(tensor.shape)}"
    need(tensor.dim() == dim and is_whole, f"{name}: holds {holds}; give integers, for one row")
    fits = free is None or 32 * tensor.numel() <= free
    need(fits, f"{name}: its {tensor.numel():,} numbers do not fit in memory; cut it to one row")
    return tensor.long()


def check_parents(name: str, parents: list[int], least: int) -> None:
    """Refuse a parent that is no row before the token."""
    rule = f"the row of a token before it, or {' or '.join(map(str, range(least, 0)))}"
    for row, parent in enumerate(parents):
        need(least <= parent < row, f"{name}: token {row} has the parent {parent}; give {rule}")


class Given:
    """What a model is given of a row: its fields, its positions (T,), and its place in a batch."""

    def __init__(self, fields: Mapping[str, Any], positions: Tensor, batch_row: int = 0) -> None:
        self.fields, self.positions, self.batch_row = fields, positions, batch_row
        self.T = len(positions)
        self.index = torch.arange(self.T)

    def ids(self, name: str) -> Tensor:
        """The integers of a field, one for each token."""
        ids = integers(name, self.fields.get(name, ()))
        what = f"{len(ids):,} entries for {self.T:,} tokens"
        need(len(ids) == self.T, f"{name}: has {what}; cut or pad it")
        return ids

    def same(self, segments: Tensor) -> Found:
        """Causal in each segment of (T,) numbers."""
        return causal_mask(self.T) & (segments[:, None] == segments), ()

    def fault(self, mask: Tensor, wrong: Tensor, words: str, name: str, mend: str) -> Found:
        """The mask, and a finding if a cell (T, T) is wrong. words: of its row and column."""
        if not wrong.any():
            return mask, ()
        said = f"{words.format(*wrong.nonzero()[0].tolist())}: {name}"
        return mask, (Finding("mask", said, name, int(wrong.sum()), wrong.numel(), mend),)

    def mask(self) -> tuple[Tensor, tuple[Finding, ...], Tensor]:
        """Who may attend to whom: (T, T) bool; what is wrong with the fields that say it; and (T,)
        bool, the tokens that a row of 0 and 1 hides."""
        shown, kind = torch.ones(self.T, dtype=torch.bool), self.fields.get("mask_is")
        sources = [name for name in MASKS if self.fields.get(name, False) is not False]
        if 0 < depth_of(self.fields.get("attention_mask")) < 3:
            row = numbers("attention_mask", self.fields["attention_mask"])
            if row.dim() == 1:  # it hides padding, beside another source or none
                shown = row != 0
                is_said = kind in ("bool", "segments") or (kind is None and (row == shown).all())
                how = "give mask_is, segments if it makes documents of it, or bool"
                need(is_said, f"attention_mask: holds other numbers than 0 and 1; {how}")
                sources = [one for one in sources if one != "attention_mask" or kind == "segments"]
        both = " and ".join(sources[:2])
        need(len(sources) < 2, f"{both} both say who may attend to whom; give the one that is used")
        source = sources[0] if sources else ""
        mask, faults = MASKS[source](self) if source else (causal_mask(self.T), ())
        if source not in WHOLE or (source == "attention_mask" and kind == "segments"):
            # Kernels count a window by index; who walks a tree knows positions.
            by = self.positions if source == "parents" else self.index
            mask = within(mask, by, by, self.fields.get("window"))
        return mask & shown, faults, ~shown


def _table(g: Given) -> Found:
    """A row for each query (bool, 0 and 1, or added to the scores), a BlockMask, or segments."""
    value, kind = g.fields["attention_mask"], g.fields.get("mask_is")
    if hasattr(value, "mask_mod"):
        return _blocks(g, value)
    mask = numbers("attention_mask", value)
    if kind == "segments":
        return g.same(integers("attention_mask", mask))
    mask = mask[None] if mask.dim() < 2 else mask  # T is 1
    shape = f"{'x'.join(map(str, mask.shape))}; give {g.T}x{g.T}, of one head"
    need(mask.shape == (g.T, g.T), f"attention_mask: has the shape {shape}")
    need(not mask.isnan().any(), "attention_mask: holds NaN; give numbers, or true and false")
    if (kind or ("additive" if mask.is_floating_point() else "bool")) == "bool":
        return mask != 0, ()
    # A softmax sees what is not far below the row's largest. Only minus infinity gives NaN.
    added = mask.float()
    return added - added.amax(dim=1, keepdim=True) >= HIDDEN, ()


def _function(g: Given, mask_mod: Any = None) -> Found:
    """mask_mod(batch, head, query, key) of FlexAttention, of head 0, on all pairs at once."""
    of = (torch.tensor(g.batch_row), torch.tensor(0), g.index[:, None], g.index)
    try:
        mask = torch.as_tensor((mask_mod or g.fields["mask_mod"])(*of)).bool()
        return mask.expand(g.T, g.T), ()
    except Exception as error:  # whatever a function of the user's own raises
        raise InputError(f"mask_mod: failed ({one_line(error)}); fix the function") from None


def _blocks(g: Given, block: Any) -> Found:
    """A BlockMask as flex_attention runs it: its mask_mod in partial blocks, all in full ones."""
    _, *shape = block.shape
    fits = shape == [1, g.T, g.T]
    need(fits, f"attention_mask: is a BlockMask of {shape}; give one head, {g.T}x{g.T}")

    def cells(number: Any, index: Any) -> Tensor:
        made = type(block).from_kv_blocks(number, index, BLOCK_SIZE=block.BLOCK_SIZE)
        dense = made.to_dense().cpu().bool()[: g.batch_row + 1, 0][-1]
        for dim, size in enumerate(block.BLOCK_SIZE):
            dense = dense.repeat_interleave(size, dim)
        return dense[: g.T, : g.T]

    said, _ = _function(g, block.mask_mod)
    mask = cells(block.kv_num_blocks, block.kv_indices) & said
    if block.full_kv_num_blocks is not None:
        mask |= cells(block.full_kv_num_blocks, block.full_kv_indices)
    name = "the blocks of the BlockMask are not those of its mask_mod"
    words = "token {} and token {} are not as its mask_mod says"
    return g.fault(mask, mask != said, words, name, "make it anew with create_block_mask")


def _parents(g: Given) -> Found:
    parents = g.ids("parents")
    check_parents("parents", parents.tolist(), -1)
    return Tree(g.index, parents, g.index, g.index).mask, ()


def _restarts(g: Given) -> Found:
    """A position that does not follow the one before begins a document."""
    return g.same((g.positions.diff(prepend=g.positions[:1] - 1) != 1).cumsum(0))


def _cu_seqlens(g: Given) -> Found:
    """0 and the ends of the documents. cu_seqlens_padded, of Megatron, are those of their places:
    what cu_seqlens leave of a place is padding."""
    borders, *other = (integers(one, g.fields[one]) for one in CU_SEQLENS if one in g.fields)
    steps, words, name = borders.diff(), "", ""
    lengths = other[0].diff() if other else steps
    if len(borders) < 2 or borders[0] != 0 or borders[-1] != g.T:
        name = "cu_seqlens has a wrong total"
        words = f"it goes from {borders[0]} to {borders[-1]}, but the row has {g.T:,} tokens"
    elif (steps < 1).any():
        name, first = "cu_seqlens has an empty document", int((steps < 1).nonzero()[0]) + 1
        words = f"its document {first} has {steps.min()} tokens"
    elif len(lengths) != len(steps) or (lengths > steps).any():
        name = "cu_seqlens does not fit into cu_seqlens_padded"
        words = f"it has {len(lengths)} documents in {len(steps)} places"
    segments = torch.bucketize(g.index, borders.cummax(0).values, right=True)
    held = g.index < borders[-1]  # the rest has no document
    if not name:
        held &= g.index - borders[segments - 1] < lengths[segments - 1]
    mask, _ = g.same(torch.where(held, segments, -1 - g.index))
    mend = f"begin it with 0, add the length of each document, and end it at {g.T:,}, the tokens"
    found = Finding("cu_seqlens", f"{words}: {name}", name, 1, len(borders), mend)
    return mask, (found,) if name else ()


def _ranges(g: Given) -> Found:
    """MagiAttention: queries of each q_range read keys of its k_range; by attn_type_map all (0),
    causal to the last key (1), from the first key on (2), or both (3)."""
    q, k = (integers(name, g.fields.get(name, ()), 2) for name in ("q_ranges", "k_ranges"))
    types = integers("attn_type_map", g.fields.get("attn_type_map", torch.zeros(len(q)).long()))
    fits = q.shape == k.shape == (len(types), 2) and not (types >> 2).any()
    fits = fits and all(0 <= a <= b <= g.T for a, b in [*q.tolist(), *k.tolist()])
    wanted = f"a begin and an end from 0 to {g.T}, as many k_ranges, and types 0-3"
    need(fits, f"q_ranges: give {wanted}")
    mask, twice = torch.zeros(2, g.T, g.T, dtype=torch.bool)
    for (a, b), (c, d), kind in zip(q.tolist(), k.tolist(), types.tolist(), strict=True):
        part = torch.ones(b - a, d - c, dtype=torch.bool)
        part = part.tril((d - c) - (b - a)) if kind & 1 else part
        part = part.triu() if kind & 2 else part
        twice[a:b, c:d] |= mask[a:b, c:d] & part
        mask[a:b, c:d] |= part
    name, mend = "two ranges hold the same pair", "cut them so that each pair is in one"
    return g.fault(mask, twice, "token {} reads token {} with twice the weight", name, mend)


def _seg_info(g: Given) -> Found:
    """Unsloth's PrefixSegInfo, an object of its fields, or a table with a row for each."""
    info, names = g.fields["prefix_seg_info"], ("group_of_kv", "is_prefix", "suffix_of_kv")
    if not depth_of(info):
        info = info if isinstance(info, Mapping) else vars(info)
        info = torch.stack([numbers(name, info.get(name, ())).long() for name in names])
    table = integers("prefix_seg_info", info, 2)[:, : g.T]
    need(table.shape == (3, g.T), f"prefix_seg_info: give {', '.join(names)} of {g.T} tokens")
    group, is_prefix, suffix = table[0], table[1] != 0, table[2]
    own = (suffix[:, None] == suffix) & ~is_prefix[:, None]
    return g.same(group)[0] & (is_prefix | own), ()


def _kv_index(g: Given) -> Found:
    """A row of keys for each token: the rows that it reads, -1 for none."""
    table = integers("tree_kv_index", g.fields["tree_kv_index"], 2)
    fits = len(table) == g.T and table.min() >= -1 and table.max() < g.T
    need(fits, f"tree_kv_index: give a row for each of {g.T} tokens, of -1 to {g.T - 1}")
    shown = torch.zeros(g.T, g.T + 1, dtype=torch.bool)
    return shown.scatter_(1, torch.where(table < 0, g.T, table), True)[:, :-1], ()


def _intervals(g: Given) -> Found:
    """TRL's tree: token q reads token k where tin[k] <= tin[q] < tout[k]."""
    begin, end = g.ids("tin"), g.ids("tout")
    return (begin <= begin[:, None]) & (begin[:, None] < end), ()


CU_SEQLENS = ("cu_seqlens_padded", "cu_seqlens")
MASKS: dict[str, Callable[[Given], Found]] = {
    "attention_mask": _table,
    "mask_mod": _function,
    "q_ranges": _ranges,
    "prefix_seg_info": _seg_info,
    "tree_kv_index": _kv_index,
    "tin": _intervals,
    "cu_seqlens": _cu_seqlens,
    "segment_ids": lambda g: g.same(g.ids("segment_ids")),
    "parents": _parents,
    "restarts": _restarts,
}
WHOLE = [*MASKS][:6]  # masks that contain the window
WITH = ("cu_seqlens_padded", "k_ranges", "attn_type_map", "tout")  # beside one of these
