"""Attention in calls of fixed shapes, so that a row's bits do not depend on what runs beside it.

A kernel chooses the order in which it sums by the shapes of its arguments. So every query reads
its keys in one way, in a prompt that runs alone, in a packed sequence and in a tree: the tokens it
may see in the order of their positions, in a call of 64 queries by 64, 128, ... keys. Tokens that
it may not see are in other calls, or masked, with a weight of exactly 0.

It computes what `masked_attention` in minise/attention.py defines. The bits are equal if a kernel
computes a row in the same way in all calls of one shape, wherever the row is in the call.

Dimension legend, in addition to minise/attention.py's: N calls of one shape, with Q queries and S
keys each, and L = Q * H / K.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import repeat

import torch
import torch.nn.functional as F
from torch import Tensor

from minise.attention import Windows, within
from minise.config import Config
from minise.layout import Tree

BLOCK = 64  # queries of a call; its keys are a multiple
FEW = 8  # queries of a call for a single new token
AT_ONCE = 32  # calls of one shape together, on a CPU: of more the copies leave its cache
ROW = 16  # bytes: if a head is not a multiple of 16 bytes, MKL reads every second row differently


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
    """N calls of one shape. queries: (N, Q) rows of the sequence, -1 where a place is empty; Q is
    BLOCK or FEW. keys: (N, S) rows. masks: for each window, what a query sees: (N or 1, Q, S)."""

    queries: Tensor
    keys: Tensor
    masks: dict[int | None, Tensor]

    def parts(self, window: int | None) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Queries, keys and mask of a window, of so many calls as run together."""
        mask = self.masks[window]
        size = AT_ONCE if mask.device.type == "cpu" else len(self.queries)
        masks = repeat(mask) if len(mask) == 1 else mask.split(size)
        return zip(self.queries.split(size), self.keys.split(size), masks, strict=False)


class Reader:
    """`attend` for Decoder.run: how the T rows of a sequence read each other. Each row is a query
    in one of the calls. With `ends` (G,) only these rows are queries in the top layer."""

    def __init__(
        self, calls: Sequence[Calls], T: int, windows: Windows, ends: Tensor | None = None
    ) -> None:
        self.calls, self.T, self.windows, self.ends = calls, T, windows, ends

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """(1, T, H, h), or in the top layer with `ends` (1, G, H, h)."""
        ends = self.ends if layer == len(self.windows) - 1 else None
        if ends is not None:
            q = q.new_zeros(1, self.T, *q.shape[2:]).index_copy(1, ends, q)
        q, k, v = q[0], k[0], v[0]
        # One more row, for the results of empty places, whose query row is -1.
        out = q.new_empty(self.T + 1, q.shape[1], v.shape[2])
        for call in self.calls:
            for queries, keys, mask in call.parts(self.windows[layer]):
                out[queries] = attention_call(q[queries], k[keys], v[keys], mask)
        return out[None, :-1] if ends is None else out[None, ends]


def tree_reader(tree: Tree, windows: Windows, device: torch.device) -> Reader:
    """The reader of a tree. Its paths are the prompts, in which a token sees all tokens before it.
    A token that several prompts share is a query once, in the first of them. In the top layer only
    the tree's ends are queries."""
    pairs_by_size: dict[int, list[tuple[list[int], list[int]]]] = {}  # queries and keys, by S
    done: set[int] = set()
    for path in tree.paths():
        for start in range(0, len(path), BLOCK):
            block = path[start : start + BLOCK]
            if done.issuperset(block):
                continue
            S = start + BLOCK
            queries = [-1 if row in done else row for row in block] + [-1] * (BLOCK - len(block))
            keys = path[:S] + path[-1:] * (S - len(path))
            pairs_by_size.setdefault(S, []).append((queries, keys))
            done.update(block)
    calls = []
    for S, pairs in pairs_by_size.items():
        queries_NQ = torch.tensor([queries for queries, _ in pairs], device=device)
        keys_NS = torch.tensor([keys for _, keys in pairs], device=device)
        position = torch.arange(S, device=device)  # in a prompt, index is position
        # The last rows of a causal mask. To cut them out of one would keep all S x S cells.
        mask = (position <= position[-BLOCK:, None])[None]
        masks = {w: within(mask, position[-BLOCK:], position, w) for w in set(windows)}
        calls.append(Calls(queries_NQ, keys_NS, masks))
    return Reader(calls, len(tree.tokens), windows, tree.ends.to(device))


def next_calls(paths: Tensor, lengths: Tensor, windows: Windows, queries: int = FEW) -> list[Calls]:
    """The calls in which G prompts grow by one token each: query g is the last token of path g, in
    a call of `queries` queries, of which the others are empty.

    paths: (G, P) rows of a cache in the order of positions, the new row last. Only the first
    `lengths` (G,) rows of a path count; any rows may follow them.
    """
    calls, sizes = [], lengths + -lengths % BLOCK
    for S in sizes.unique().tolist():
        prompts = (sizes == S).nonzero().flatten()
        last = lengths[prompts, None, None] - 1
        position = torch.arange(S, device=paths.device)  # in a prompt, index is position
        mask = (position <= last).expand(-1, queries, -1)
        masks = {w: within(mask, last[..., 0], position, w) for w in set(windows)}
        keys = F.pad(paths[prompts, :S], (0, max(0, S - paths.shape[1])))
        calls.append(Calls(F.pad(prompts[:, None], (0, queries - 1), value=-1), keys, masks))
    return calls


def few_queries(config: Config, dtype: torch.dtype, device: torch.device) -> int:
    """How many queries a call for a single new token has: FEW, if a call of FEW gives the bits of a
    call of BLOCK, which is tried on a CPU; else BLOCK."""
    if device.type != "cpu":
        return FEW
    H, K, h = config.num_attention_heads, config.num_key_value_heads, config.head_dim
    return _few_queries(H, K, h, dtype, torch.get_num_threads())


@lru_cache(64)
@torch.inference_mode()
def _few_queries(H: int, K: int, h: int, dtype: torch.dtype, threads: int) -> int:
    generator = torch.Generator().manual_seed(0)
    for S in (BLOCK, 3 * BLOCK, 9 * BLOCK):
        q, k, v = (
            torch.randn(1, n, m, h, generator=generator) for n, m in ((BLOCK, H), (S, K), (S, K))
        )
        # Each key comes twice, with opposite values: a kernel returns its rounding errors.
        order = torch.randperm(S, generator=generator)
        k[:, order[S // 2 :]], v[:, order[S // 2 :]] = k[:, order[: S // 2]], -v[:, order[: S // 2]]
        q, k, v = (x.to(dtype) for x in (q, k, v))
        mask = torch.ones(1, BLOCK, S, dtype=torch.bool)
        parts, expected = q.split(FEW, dim=1), attention_call(q, k, v, mask).split(FEW, dim=1)
        for part, bits in zip(parts, expected, strict=True):
            if not torch.equal(attention_call(part, k, v, mask[:, :FEW]), bits):
                return BLOCK
    return FEW


def mask_reader(mask: Tensor, positions: Tensor, windows: Windows, device: torch.device) -> Reader:
    """The reader of T tokens under any mask (T, T), True = may attend, at position ids (T,).

    A path is the tokens that one row sees, in the order of positions. The rows on it that see no
    token outside the path are queries along it, each under its own part of the mask. In a packed
    sequence the paths are again the prompts.
    """
    mask, positions = mask.cpu(), positions.cpu()
    open_rows = torch.ones(len(mask), dtype=torch.bool)  # not yet a query of any call
    by_size: dict[int, list[tuple[Tensor, Tensor, Tensor]]] = {}  # queries, keys, mask; by S
    for row in reversed(range(len(mask))):
        if not open_rows[row]:
            continue
        visible = mask[row].nonzero().flatten()
        path = visible[positions[visible].argsort(stable=True)]
        rows_PT = mask[path]
        is_query = open_rows[path] & ~rows_PT[:, ~mask[row]].any(dim=1)
        open_rows[path[is_query]] = False
        for start in range(0, len(path), BLOCK):
            block = slice(start, start + BLOCK)
            rows, in_call = path[block], is_query[block]
            if not in_call.any():
                continue
            mask_QP = rows_PT[block, path] & in_call[:, None]
            reach = int(mask_QP.any(dim=0).nonzero().max()) + 1  # the last key that any query sees
            S, empty = reach + -reach % BLOCK, BLOCK - len(rows)
            more = S - len(path[:S])
            keys = F.pad(path[:S], (0, more), value=int(path[-1]))
            mask_QS = F.pad(mask_QP[:, :S], (0, more, 0, empty))
            queries = F.pad(rows.masked_fill(~in_call, -1), (0, empty), value=-1)
            by_size.setdefault(S, []).append((queries, keys, mask_QS))
    calls = []
    for same_size in by_size.values():
        queries, keys, mask_NQS = (torch.stack(part) for part in zip(*same_size, strict=True))
        # An empty place sees everything: a softmax over nothing would be NaN.
        no_query = (queries < 0)[..., None]
        masks = {
            w: within(mask_NQS, positions[queries], positions[keys], w) | no_query
            for w in set(windows)
        }
        masks = {w: m.to(device) for w, m in masks.items()}
        calls.append(Calls(queries.to(device), keys.to(device), masks))
    return Reader(calls, len(mask), windows)
