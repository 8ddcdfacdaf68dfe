"""Attention in calls of fixed shapes, so that a row's bits do not depend on what runs beside it.

A sum of floating-point numbers depends on their order, and a kernel chooses the order by the shapes
it is given. So every query reads its keys in one way, in a prompt that runs alone as in a packed
sequence or a tree: the tokens it may see in the order of their positions, in a call of 64 queries
by 64, 128, ... keys. What it may not see lies in other calls, in other items of the batch, or
behind the mask, where its weight is exactly 0. So no call holds a mask of the whole sequence.

It computes what `masked_attention` in minise/attention.py defines. It rests on kernels that do the
same for the same shapes, wherever a row stands in them.

Dimension legend, beside minise/attention.py's: N calls of one shape, Q queries and S keys of each,
L = Q * H / K.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

from minise.attention import Windows, within
from minise.config import Config
from minise.layout import Tree, causal_mask

BLOCK = 64  # queries of a call; its keys are a multiple
FEW = 8  # queries of a call for a token that comes alone
ROW = 16  # bytes: a head of no multiple of these makes MKL read every second row in another way


def attention_call(q_NQHh: Tensor, k_NSKh: Tensor, v_NSKh: Tensor, mask_NQS: Tensor) -> Tensor:
    """softmax(q k^T / sqrt(h)) v with masked scores at -inf before the softmax: (N, Q, H, h)."""
    # Query head i reads key/value head i // (H / K). The query heads of a key/value head are more
    # queries for the same keys: side by side in the length they need no copy of the keys.
    Q, H, K = q_NQHh.shape[1], q_NQHh.shape[2], k_NSKh.shape[2]
    h, wide = q_NQHh.shape[3], v_NSKh.shape[3]
    if fill := -h % (ROW // q_NQHh.element_size()):
        q_NQHh, k_NSKh, v_NSKh = (F.pad(x, (0, fill)) for x in (q_NQHh, k_NSKh, v_NSKh))
    q_NKLh = q_NQHh.unflatten(2, (K, H // K)).permute(0, 2, 1, 3, 4).flatten(2, 3)
    mask_NLS = mask_NQS.repeat_interleave(H // K, dim=1)
    k_NKSh, v_NKSh = k_NSKh.transpose(1, 2), v_NSKh.transpose(1, 2)
    mask_NKLS, scale = mask_NLS[:, None], h**-0.5
    out_NKLh = F.scaled_dot_product_attention(q_NKLh, k_NKSh, v_NKSh, mask_NKLS, scale=scale)
    return out_NKLh[..., :wide].unflatten(2, (Q, H // K)).permute(0, 2, 1, 3, 4).flatten(2, 3)


@dataclass(frozen=True, eq=False)
class Calls:
    """N calls of one shape. queries: (N, Q) rows of the sequence, -1 where a place stays empty, Q
    either BLOCK or FEW. keys: (N, S) rows. masks: by window, what a query sees, (N or 1, Q, S)."""

    queries: Tensor
    keys: Tensor
    masks: dict[int | None, Tensor]


class Reader:
    """How the T rows of a sequence read one another: `attend` for Decoder.run. Each row is a query
    in one of the calls. With `ends` (G,) only these rows read in the top layer."""

    def __init__(
        self, calls: Sequence[Calls], T: int, windows: Windows, ends: Tensor | None = None
    ) -> None:
        self.T, self.windows, self.ends = T, windows, ends
        self.calls, self.top = calls, calls if ends is None else _only(calls, ends)

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """(1, T, H, h), or in the top layer with `ends` (1, G, H, h)."""
        ends = self.ends if layer == len(self.windows) - 1 else None
        if ends is not None:
            q = q.new_zeros(1, self.T, *q.shape[2:]).index_copy(1, ends, q)
        q, k, v = q[0], k[0], v[0]
        # One row more: an empty place is row -1, and what it reads goes there.
        out = q.new_empty(self.T + 1, q.shape[1], v.shape[2])
        for call in self.calls if ends is None else self.top:
            mask = call.masks[self.windows[layer]]
            out[call.queries] = attention_call(q[call.queries], k[call.keys], v[call.keys], mask)
        return out[None, :-1] if ends is None else out[None, ends]


def tree_reader(tree: Tree, windows: Windows, device: torch.device) -> Reader:
    """A reader of a tree, whose ends alone read in the top layer."""
    return Reader(
        tree_calls(tree, windows, device), len(tree.tokens), windows, tree.ends.to(device)
    )


def tree_calls(tree: Tree, windows: Windows, device: torch.device) -> list[Calls]:
    """The calls of a tree. Its paths are the prompts, in which a token sees all that come before
    it. What several prompts share is read once, in the first of them."""
    found: dict[int, list[tuple[list[int], list[int]]]] = {}  # by number of keys
    read: set[int] = set()
    for path in tree.paths():
        for start in range(0, len(path), BLOCK):
            own, S = path[start : start + BLOCK], start + BLOCK
            if not read.issuperset(own):
                queries = [-1 if row in read else row for row in own]
                keys = path[:S] + path[-1:] * (S - len(path))
                found.setdefault(S, []).append((queries + [-1] * (BLOCK - len(own)), keys))
                read.update(own)
    calls = []
    for S, pairs in found.items():
        asked, read_by = (torch.tensor(rows, device=device) for rows in zip(*pairs, strict=True))
        seen, index = causal_mask(S)[None, -BLOCK:].to(device), torch.arange(S, device=device)
        # In a prompt, index is position.
        masks = {w: within(seen, index[-BLOCK:], index, w) for w in set(windows)}
        calls.append(Calls(asked, read_by, masks))
    return calls


def next_calls(paths: Tensor, lengths: Tensor, windows: Windows, queries: int = FEW) -> list[Calls]:
    """The calls in which G prompts grow by a token each: query g is the last token of path g, in a
    call of so many `queries`.

    paths: (G, P) rows of a cache in the order of positions, the new row last; behind the first
    `lengths` (G,) of a path any rows may stand.
    """
    calls, steps = [], lengths + -lengths % BLOCK
    for S in steps.unique().tolist():
        own = (steps == S).nonzero().flatten()
        at, index = lengths[own, None, None] - 1, torch.arange(S, device=paths.device)
        # In a prompt, index is position.
        seen = (index <= at).expand(-1, queries, -1)
        masks = {w: within(seen, at[..., 0], index, w) for w in set(windows)}
        keys = F.pad(paths[own, :S], (0, max(0, S - paths.shape[1])))
        calls.append(Calls(F.pad(own[:, None], (0, queries - 1), value=-1), keys, masks))
    return calls


def few_queries(config: Config, dtype: torch.dtype, device: torch.device) -> int:
    """How many queries a call needs for a token that comes alone: FEW, if they get the bits that
    they have in a call of BLOCK, which is tried on a CPU; else BLOCK."""
    if device.type != "cpu":
        return FEW
    heads = config.num_attention_heads, config.num_key_value_heads, config.head_dim
    return _few_queries(heads, dtype, torch.get_num_threads())


@lru_cache(64)
@torch.inference_mode()
def _few_queries(heads: tuple[int, int, int], dtype: torch.dtype, threads: int) -> int:
    (H, K, h), generator = heads, torch.Generator().manual_seed(0)
    for S in (BLOCK, 3 * BLOCK, 9 * BLOCK):
        q, k, v = (
            torch.randn(1, n, m, h, generator=generator) for n, m in ((BLOCK, H), (S, K), (S, K))
        )
        # Each key twice, with opposite values: the sums are 0, and what is left is their rounding.
        order = torch.randperm(S, generator=generator)
        k[:, order[S // 2 :]], v[:, order[S // 2 :]] = k[:, order[: S // 2]], -v[:, order[: S // 2]]
        q, k, v = (x.to(dtype) for x in (q, k, v))
        mask = torch.ones(1, BLOCK, S, dtype=torch.bool)
        for part, of in zip(
            q.split(FEW, dim=1), attention_call(q, k, v, mask).split(FEW, dim=1), strict=True
        ):
            if not torch.equal(attention_call(part, k, v, mask[:, :FEW]), of):
                return BLOCK
    return FEW


def mask_reader(
    masks_BTU: Tensor, positions_BU: Tensor, windows: Windows, device: torch.device
) -> Reader:
    """A reader of B sequences under any masks, laid one after the other in one of B * T rows. Each
    has U tokens, of which the last T are rows of its mask."""
    calls, (T, U) = [], masks_BTU.shape[1:]
    for item, (mask, at) in enumerate(zip(masks_BTU.cpu(), positions_BU.cpu(), strict=True)):
        for call in mask_calls(mask, at, windows):
            queries = torch.where(call.queries < 0, -1, call.queries + item * T).to(device)
            masks = {window: mask.to(device) for window, mask in call.masks.items()}
            calls.append(Calls(queries, (call.keys + item * U).to(device), masks))
    return Reader(calls, masks_BTU.shape[0] * T, windows)


def mask_calls(mask: Tensor, positions: Tensor, windows: Windows) -> list[Calls]:
    """The calls of any mask (T, U), True = may attend, with position ids (U,). Its rows are the
    last T of U tokens; those before them, if any, are cached.

    A path is what one row sees, in the order of positions. The rows on it that see nothing beyond
    it are read along it, each under its own part of the mask. In a packed sequence the paths are
    the prompts again.
    """
    T, U = mask.shape
    cached = U - T
    left = torch.arange(U) >= cached  # rows that are on no path yet
    found: dict[int, list[tuple[Tensor, Tensor, Tensor]]] = {}  # by number of keys
    for row in reversed(range(T)):
        if not left[cached + row]:
            continue
        seen = mask[row].nonzero().flatten()
        path = seen[positions[seen].argsort(stable=True)]
        rows_PU = mask[(path - cached).clamp(min=0)]
        mine = left[path] & ~rows_PU[:, ~mask[row]].any(dim=1)
        left[path[mine]] = False
        for start in range(0, len(path), BLOCK):
            here = slice(start, start + BLOCK)
            own, asked = path[here], mine[here]
            if not asked.any():
                continue
            visible = rows_PU[here, path] & asked[:, None]
            reach = int(visible.any(dim=0).nonzero().max()) + 1
            S, empty = reach + -reach % BLOCK, BLOCK - len(own)
            keys = F.pad(path[:S], (0, S - len(path[:S])), value=int(path[-1]))
            cells = F.pad(visible[:, :S], (0, S - len(path[:S]), 0, empty))
            queries = F.pad(own.masked_fill(~asked, -1), (0, empty), value=-1)
            found.setdefault(S, []).append((queries, keys, cells))
    calls = []
    for rows in found.values():
        queries, keys, cells = (torch.stack(part) for part in zip(*rows, strict=True))
        # An empty place sees everything: the softmax of nothing is NaN.
        no_query = (queries < 0)[..., None]
        at = positions[queries], positions[keys]
        masks = {w: within(cells, *at, w) | no_query for w in set(windows)}
        calls.append(Calls((queries - cached).clamp(min=-1), keys, masks))
    return calls


def _only(calls: Sequence[Calls], rows: Tensor) -> list[Calls]:
    """The calls in which these rows are queries, without other queries."""
    kept = []
    for call in calls:
        queries = call.queries.masked_fill(~torch.isin(call.queries, rows), -1)
        if (items := (queries >= 0).any(dim=1)).any():
            masks = {w: m if len(m) == 1 else m[items] for w, m in call.masks.items()}
            kept.append(Calls(queries[items], call.keys[items], masks))
    return kept
