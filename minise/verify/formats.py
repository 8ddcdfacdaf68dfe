"""Who may attend to whom, in the forms that libraries hold it in: each becomes one mask (T, T).
docs/check.md has where each library's rule is written. A new form is a line of MASKS.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from minise.attention import within
from minise.errors import InputError, one_line
from minise.layout import Tree, causal_mask
from minise.memory import free_bytes

AXES = (1, 3, 4)  # of positions: M-RoPE has time, height, width; before them those of texts
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


def integers(name: str, value: Any, *shape: Collection[int], span: Sequence[int] = ()) -> Tensor:
    """int64 in `span`. shape: for each dimension the sizes that it may have, none for any. What
    would not fit is refused before it is widened."""
    tensor, free = numbers(name, value), free_bytes()
    tensor = tensor[None] if tensor.dim() < len(shape) else tensor
    is_whole = not (tensor.dtype == torch.bool or tensor.is_floating_point())
    sizes = zip(tensor.shape, shape, strict=False)
    fits = tensor.dim() == len(shape) and all(one in (few or [one]) for one, few in sizes)
    wanted = " x ".join(" or ".join(map(str, few)) or "N" for few in shape)
    holds = f"{tensor.dtype} of the shape {tuple(tensor.shape)}"
    need(fits and is_whole, f"{name}: holds {holds}; give {wanted} integers, for one row")
    fits = free is None or 32 * tensor.numel() <= free
    need(fits, f"{name}: its {tensor.numel():,} numbers do not fit in memory; cut it to one row")
    tensor = tensor.long()
    for one in (int(tensor.min()), int(tensor.max())) if span else ():
        need(one in span, f"{name}: holds {one}; give numbers from {span[0]} to {span[-1]}")
    return tensor


def parents_of(name: str, value: Any, T: int, least: int) -> list[int]:
    """The row before each token. Refuse one that is no row before it."""
    parents: list[int] = integers(name, value, [T]).tolist()
    rule = f"the row of a token before it, or {' or '.join(map(str, range(least, 0)))}"
    for row, parent in enumerate(parents):
        need(least <= parent < row, f"{name}: token {row} has the parent {parent}; give {rule}")
    return parents


def as_tree(parents: list[int], tokens: Tensor | None = None) -> Tree:
    """The tree of the rows before each token, in which one of no prompt is a root."""
    depths: list[int] = []
    for parent in parents:
        depths.append(depths[parent] + 1 if parent >= 0 else 0)
    inner, before = set(parents), torch.tensor(parents).clamp(min=-1)
    ends = [row for row, parent in enumerate(parents) if parent >= -1 and row not in inner]
    tokens = before if tokens is None else tokens
    return Tree(tokens, before, torch.tensor(depths), torch.tensor(ends))


class Given:
    """What a model is given of a row of T tokens, by the fields of docs/check.md. positions: (A, T)
    int64, where A is 1, or more for M-RoPE. mask: (T, T) bool. hidden: (T,) bool, what a row of 0
    and 1 hides. faults: of the fields that say so."""

    def __init__(self, fields: Mapping[str, Any], T: int, batch_row: int = 0) -> None:
        self.fields, self.T, self.batch_row, self.index = fields, T, batch_row, torch.arange(T)
        self.positions = integers("position_ids", fields.get("position_ids", self.index), AXES, [T])
        self.faults: list[Finding] = []
        self.mask, self.hidden = self._mask()

    def ids(self, name: str, default: Any = ()) -> Tensor:
        """The integers of a field, one for each token."""
        return integers(name, self.fields.get(name, default), [self.T])

    def same(self, segments: Tensor) -> Tensor:
        """Causal in each segment of (T,) numbers."""
        return causal_mask(self.T) & (segments[:, None] == segments)

    def fault(self, wrong: Tensor, words: str, name: str, mend: str) -> None:
        """A finding, if a cell (T, T) is wrong. words: of its row and column."""
        if wrong.any():
            said = f"{words.format(*wrong.nonzero()[0].tolist())}: {name}"
            self.faults += [Finding("mask", said, name, int(wrong.sum()), wrong.numel(), mend)]

    def _mask(self) -> tuple[Tensor, Tensor]:
        hidden, kind = torch.zeros(self.T, dtype=torch.bool), self.fields.get("mask_is")
        sources = [name for name in MASKS if self.fields.get(name, False) is not False]
        row: Any = self.fields.get("attention_mask")
        if 0 < depth_of(row) < 3 and (row := numbers("attention_mask", row)).dim() == 1:
            hidden = row == 0  # padding, beside another source or none
            is_said = kind in ("bool", "segments") or (kind is None and (row == ~hidden).all())
            how = "give mask_is, segments if it makes documents of it, or bool"
            fits = is_said and len(row) == self.T
            need(fits, f"attention_mask: holds no {self.T} numbers of 0 and 1; {how}")
            sources = sources if kind == "segments" else sources[1:]
        both = " and ".join(sources[:2])
        need(len(sources) < 2, f"{both} both say who may attend to whom; give the one that is used")
        source = sources[0] if sources else ""
        mask = MASKS[source](self) if source else causal_mask(self.T)
        if source not in WHOLE or kind == "segments":
            # Kernels count a window by index; who walks a tree knows positions.
            by = self.positions[0] if source == "parents" else self.index
            mask = within(mask, by, by, self.fields.get("window"))
        return mask & ~hidden, hidden


def _table(g: Given) -> Tensor:
    """A row for each query (bool, 0 and 1, or added to the scores), a BlockMask, or segments."""
    value, kind = g.fields["attention_mask"], g.fields.get("mask_is")
    if hasattr(value, "mask_mod"):
        return _blocks(g, value)
    if kind == "segments":
        return g.same(g.ids("attention_mask"))
    mask = numbers("attention_mask", value)
    mask = mask[None] if mask.dim() < 2 else mask  # T is 1
    shape = f"{'x'.join(map(str, mask.shape))}; give {g.T}x{g.T}, of one head"
    need(mask.shape == (g.T, g.T), f"attention_mask: has the shape {shape}")
    need(not mask.isnan().any(), "attention_mask: holds NaN; give numbers, or true and false")
    if (kind or ("additive" if mask.is_floating_point() else "bool")) == "bool":
        return mask != 0
    # A softmax sees what is not far below the row's largest. Only minus infinity gives NaN.
    added = mask.float()
    return added - added.amax(dim=1, keepdim=True) >= HIDDEN


def _function(g: Given, mask_mod: Any) -> Tensor:
    """mask_mod(batch, head, query, key) of FlexAttention, of head 0, on all pairs at once."""
    of = (torch.tensor(g.batch_row), torch.tensor(0), g.index[:, None], g.index)
    try:
        return torch.as_tensor(mask_mod(*of)).bool().expand(g.T, g.T)
    except Exception as error:  # whatever a function of the user's own raises
        raise InputError(f"mask_mod: failed ({one_line(error)}); fix the function") from None


def _blocks(g: Given, block: Any) -> Tensor:
    """A BlockMask as flex_attention runs it: its mask_mod in partial blocks, all in full ones."""
    shape = f"is a BlockMask of {tuple(block.shape)}; give one head, {g.T}x{g.T}"
    need(tuple(block.shape[1:]) == (1, g.T, g.T), f"attention_mask: {shape}")

    def cells(number: Any, index: Any) -> Tensor:
        made = type(block).from_kv_blocks(number, index, BLOCK_SIZE=block.BLOCK_SIZE)
        dense = made.to_dense().cpu().bool()[: g.batch_row + 1, 0][-1]
        for dim, size in enumerate(block.BLOCK_SIZE):
            dense = dense.repeat_interleave(size, dim)
        return dense[: g.T, : g.T]

    said = _function(g, block.mask_mod)
    mask = cells(block.kv_num_blocks, block.kv_indices) & said
    if block.full_kv_num_blocks is not None:
        mask |= cells(block.full_kv_num_blocks, block.full_kv_indices)
    name = "the blocks of the BlockMask are not those of its mask_mod"
    words = "token {} and token {} are not as its mask_mod says"
    g.fault(mask != said, words, name, "make it anew with create_block_mask")
    return mask


def _cu_seqlens(g: Given) -> Tensor:
    """0 and the ends of the documents. cu_seqlens_padded, of Megatron, are those of their places:
    what cu_seqlens leave of a place is padding."""
    borders, *other = (integers(one, g.fields[one], ()) for one in CU_SEQLENS if one in g.fields)
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
    mend = f"begin it with 0, add the length of each document, and end it at {g.T:,}, the tokens"
    if name:
        g.faults += [Finding("cu_seqlens", f"{words}: {name}", name, 1, len(borders), mend)]
    segments = -1 - g.index  # a token of no document is alone
    for number, (start, length) in enumerate(zip(borders, lengths, strict=False)):
        segments[start : start + length] = number
    return g.same(segments)


def _ranges(g: Given) -> Tensor:
    """MagiAttention: queries of each q_range read keys of its k_range; by attn_type_map all (0),
    causal to the last key (1), from the first key on (2), or both (3)."""
    q = integers("q_ranges", g.fields["q_ranges"], (), [2], span=range(g.T + 1))
    N = len(q)
    k = integers("k_ranges", g.fields.get("k_ranges", ()), [N], [2], span=range(g.T + 1))
    types = integers("attn_type_map", g.fields.get("attn_type_map", [0] * N), [N], span=range(4))
    need((torch.cat([q, k]).diff() >= 0).all(), "q_ranges: one ends before it begins; turn it")
    times = torch.zeros(g.T, g.T, dtype=torch.int32)
    for (a, b), (c, d), kind in zip(q.tolist(), k.tolist(), types.tolist(), strict=True):
        part = torch.ones(b - a, d - c, dtype=torch.int32)
        part = part.tril((d - c) - (b - a)) if kind & 1 else part
        times[a:b, c:d] += part.triu() if kind & 2 else part
    name, mend = "two ranges hold the same pair", "cut them so that each pair is in one"
    g.fault(times > 1, "token {} reads token {} with twice the weight", name, mend)
    return times > 0


def _seg_info(g: Given) -> Tensor:
    """Unsloth's PrefixSegInfo, an object of its fields, or a table with a row for each."""
    info, names = g.fields["prefix_seg_info"], ("group_of_kv", "is_prefix", "suffix_of_kv")
    if not depth_of(info):
        info = info if isinstance(info, Mapping) else getattr(info, "__dict__", {})
        info = torch.stack([numbers(name, info.get(name, ())).long() for name in names])
    info = numbers("prefix_seg_info", info)[..., : g.T]
    group, is_prefix, suffix = integers("prefix_seg_info", info, [3], [g.T])
    own = (suffix[:, None] == suffix) & (is_prefix[:, None] == 0)
    return g.same(group) & ((is_prefix != 0) | own)


def _kv_index(g: Given) -> Tensor:
    """A row of keys for each token: the rows that it reads, -1 for none."""
    table = integers("tree_kv_index", g.fields["tree_kv_index"], [g.T], (), span=range(-1, g.T))
    shown = torch.zeros(g.T, g.T + 1, dtype=torch.bool)
    return shown.scatter_(1, table % (g.T + 1), True)[:, :-1]


CU_SEQLENS = ("cu_seqlens_padded", "cu_seqlens")
MASKS: dict[str, Callable[[Given], Tensor]] = {
    "attention_mask": _table,
    "mask_mod": lambda g: _function(g, g.fields["mask_mod"]),
    "q_ranges": _ranges,
    "prefix_seg_info": _seg_info,
    "tree_kv_index": _kv_index,
    # TRL's tree: token q reads token k where tin[k] <= tin[q] < tout[k].
    "tin": lambda g: (
        (g.ids("tin") <= g.ids("tin")[:, None]) & (g.ids("tin")[:, None] < g.ids("tout"))
    ),
    "cu_seqlens": _cu_seqlens,
    "segment_ids": lambda g: g.same(g.ids("segment_ids")),
    "parents": lambda g: as_tree(parents_of("parents", g.fields["parents"], g.T, -1)).mask,
    # A position that does not follow the one before begins a document.
    "restarts": lambda g: g.same((g.positions[0].diff(prepend=g.index[:1]) != 1).cumsum(0)),
}
WHOLE = [*MASKS][:6]  # masks that contain the window
WITH = ("cu_seqlens_padded", "k_ranges", "attn_type_map", "tout")  # beside one of these
