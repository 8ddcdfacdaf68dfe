"""Attention in calls of fixed shapes, so that a row's bits do not depend on what runs beside it.

A kernel chooses the order in which it sums by the shapes of its arguments. So every query reads its
keys in one way, in a prompt that runs alone, in a packed sequence and in a tree: what it sees, in
the order of positions, in two calls, whose results are joined by the logs of their sums:

    near   its own block of 64 places and the one before: 64 or 128 keys under a mask
    far    all blocks before these, without a mask unless a window is smaller

The cut depends on a token's place alone. So prompts that begin alike read their far keys together,
where they lie. On GPUs a batch reads its beginning so (Hydragen, Juravsky et al. 2024; bifurcated
attention, Athiwaratkun et al. 2024), cut at its end, which a prompt that runs alone cannot know.

It computes what `masked_attention` in minise/attention.py defines. The bits are equal if a kernel
computes a row in the same way in all calls of one shape, wherever the row is in the call.

Dimension legend, in addition to minise/attention.py's: N calls of one shape, with Q queries and S
keys each, and L = Q * H / K.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function

from minise.attention import Windows, within
from minise.exact.calls import fresh
from minise.exact.probe import alike
from minise.layout import Tree
from minise.model import Decoder

BLOCK = 64  # positions; the most queries of a call
FEW = (8, 16, 32, 48)  # fewer queries, where a call of them gives the bits of one of BLOCK
AT_ONCE = 32  # calls of one shape together, on a CPU: of more the copies leave its cache
ROW = 16  # bytes: if a head is not a multiple of 16 bytes, MKL reads every second row differently

Part = tuple[Tensor, Tensor]  # what is read, (N, Q, H, h), and the log of the sum of exp, (N, Q, H)
Prompt = tuple[Tensor, list[int]]  # rows and positions (2, P) in order, on a CPU; places of queries
_tried: dict[tuple[Any, ...], tuple[int, ...]] = {}  # results of `numbers_of_queries`


def attention_call(
    q_NQHh: Tensor, k_NSKh: Tensor, v_NSKh: Tensor, mask_NQS: Tensor | None = None
) -> Part:
    """softmax(q k^T / sqrt(h)) v with masked scores at -inf before the softmax."""
    # Query head i reads key/value head i // (H / K). The query heads of a key/value head are more
    # queries for the same keys: side by side in the length they need no copy of the keys.
    Q, H, K = q_NQHh.shape[1], q_NQHh.shape[2], k_NSKh.shape[2]
    h, wide = q_NQHh.shape[3], v_NSKh.shape[3]
    if fill := -h % (ROW // q_NQHh.element_size()):
        q_NQHh, k_NSKh, v_NSKh = (F.pad(x, (0, fill)) for x in (q_NQHh, k_NSKh, v_NSKh))
    q_NKLh = q_NQHh.unflatten(2, (K, H // K)).permute(0, 2, 1, 3, 4).flatten(2, 3)
    k_NKSh, v_NKSh = k_NSKh.transpose(1, 2), v_NSKh.transpose(1, 2)
    mask = None if mask_NQS is None else mask_NQS.repeat_interleave(H // K, dim=1)[:, None]
    out_NKLh, sums_NKL = kernel(q_NKLh, k_NKSh, v_NKSh, mask, h**-0.5)
    out = out_NKLh[..., :wide].unflatten(2, (Q, H // K)).permute(0, 2, 1, 3, 4).flatten(2, 3)
    return out, sums_NKL.unflatten(2, (Q, H // K)).transpose(1, 2).flatten(2, 3)


def kernel(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float) -> Part:
    """The kernel of `F.scaled_dot_product_attention`, which keeps the sums to itself. q (N, K, L,
    h), k and v (N, K, S, h), mask (N or 1, 1, L, S). A query that sees no key has a sum of 0."""
    if has_torch_function((q,)):
        return handle_torch_function(kernel, (q,), q, k, v, mask, scale)
    if q.device.type == "cpu" and q.shape[-1] == v.shape[-1]:
        call = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
        bias = None if mask is None else q.new_zeros(mask.shape).masked_fill(~mask, float("-inf"))
        out, sums = call(q, k, v, attn_mask=bias, scale=scale)
    else:
        scores = (q @ k.mT).to(torch.promote_types(q.dtype, torch.float32)) * scale
        if mask is not None:
            scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
        sums = scores.logsumexp(dim=-1)
        out = (scores - sums[..., None]).exp().to(v.dtype) @ v
    return out, sums if mask is None else sums.masked_fill(~mask.any(dim=-1), float("-inf"))


def joined(far: Part, near: Part) -> Tensor:
    """What queries read of both parts: (N, Q, H, h). Pair by pair, so a row's place is nothing."""
    if has_torch_function(near):
        return handle_torch_function(joined, near, far, near)
    shares = torch.stack([far[1], near[1]], dim=-1).softmax(dim=-1)
    return (far[0] * shares[..., :1] + near[0] * shares[..., 1:]).to(near[0].dtype)


@dataclass(frozen=True, eq=False)
class Calls:
    """N calls of one shape. queries: (N, Q) rows; the last fills empty places. keys: (N or 1, S)
    rows. at: (N or 1, Q), of: (N or 1, S), their positions. joins: the queries have far keys, too.
    first: the first key, if they follow one another. mask: (1, Q, S), if not all before is seen."""

    queries: Tensor
    at: Tensor
    keys: Tensor
    of: Tensor
    far: bool = False
    joins: bool = False
    first: int | None = None
    mask: Tensor | None = None

    def seen(self, window: int | None, calls: slice) -> Tensor | None:
        """The mask of some of the calls (N or 1, Q, S), or None where everything is seen."""
        fits = window is None or self.keys.shape[1] + 2 * BLOCK <= window
        if self.far and fits and (window is None or int(self.at.max() - self.of.min()) < window):
            return None
        at, of = (x if len(x) == 1 else x[calls] for x in (self.at, self.of))
        mask = of[:, None] <= at[..., None] if self.mask is None else self.mask
        return within(mask, at, of, window)

    def read(self, x: Tensor, calls: slice) -> Tensor:
        """Keys or values (N, S, K, h) of x (T, K, h); those that follow one another uncopied."""
        if self.first is None:
            rows = x[self.keys if len(self.keys) == 1 else self.keys[calls]]
        else:
            rows = fresh(x[self.first : self.first + self.keys.shape[1]])[None]
        return rows.expand(len(self.queries[calls]), *rows.shape[1:])


class Reader:
    """`attend` for Decoder.run: how the T rows of a sequence read each other. With `ends` (G,) only
    these rows are queries in the top layer."""

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
        out, sums = q.new_empty(self.T, q.shape[1], v.shape[2]), None  # sums: once a dtype is known
        for call in self.calls:
            size = AT_ONCE if q.device.type == "cpu" else len(call.queries)
            for start in range(0, len(call.queries), size):
                some = slice(start, start + size)
                queries, mask = call.queries[some], call.seen(self.windows[layer], some)
                part = attention_call(q[queries], call.read(k, some), call.read(v, some), mask)
                if sums is None:
                    sums = part[1].new_empty(out.shape[:2])
                far = (out[queries], sums[queries]) if call.joins else None
                out[queries], sums[queries] = joined(far, part) if far else part[0], part[1]
        return out[None] if ends is None else out[None, ends]


def prompt_calls(prompts: Iterable[Prompt], decoder: Decoder) -> list[Calls]:
    """The calls of prompts, in which a token sees all before it; those of far keys first."""
    numbers, device = numbers_of_queries(decoder), decoder.device
    kinds: dict[tuple[Any, ...], list[tuple[Tensor, Tensor]]] = {}  # queries and keys of each call
    shared: dict[tuple[int, int], tuple[Tensor, list[Tensor]]] = {}  # far keys, all their queries

    def add(queries: Tensor, keys: Tensor, *kind: Any) -> None:
        last = queries.shape[1] - 1
        number = min(number for number in numbers if number > last)
        queries = queries[:, torch.arange(number).clamp(max=last)]
        kinds.setdefault((*kind, keys.shape[1], number), []).append((queries, keys))

    for path, places in prompts:
        for block, some in groupby(places, key=lambda place: place // BLOCK):
            start, queries = max(0, block - 1) * BLOCK, path[:, list(some)]
            place = torch.arange(start, (block + 1) * BLOCK)
            beyond = (place - path.shape[1] + 1).clamp(min=0)  # the end: at positions nobody sees
            near = path[:, place - beyond] + beyond * torch.tensor([[0], [1]])
            origin = near[1, 0] * torch.tensor([[0], [1]])
            add(queries - origin, near - origin, False, start > 0, None)
            if start:  # prompts that share the last of the far keys share all
                key = start, int(path[0, start - 1])
                shared.setdefault(key, (path[:, :start], []))[1].append(queries)
    for keys, every in shared.values():
        first = int(keys[0, 0]) if (keys[0].diff() == 1).all() else None
        for queries in torch.cat(every, dim=1).split(BLOCK, dim=1):
            add(queries, keys, True, False, first)

    calls = []
    for (far, joins, first, _, _), same in kinds.items():
        both = (x[0][None] if len(x) == 1 else torch.stack(x) for x in zip(*same, strict=True))
        (rows, at), (keys, of) = (x.unbind(dim=1) for x in both)
        at, keys, of = (x[:1] if (x == x[0]).all() else x for x in (at, keys, of))
        rows, at, keys, of = (x.to(device) for x in (rows, at, keys, of))
        calls.append(Calls(rows, at, keys, of, far, joins, first))
    return sorted(calls, key=lambda call: not call.far)


def tree_reader(tree: Tree, decoder: Decoder) -> Reader:
    """The reader of a tree. Its paths are the prompts; what they share is queries in the first."""
    prompts, done = [], set[int]()
    for path in tree.paths():
        places = [place for place, row in enumerate(path) if row not in done]
        prompts.append((torch.stack([torch.tensor(path), torch.arange(len(path))]), places))
        done.update(path)
    calls, ends = prompt_calls(prompts, decoder), tree.ends.to(decoder.device)
    return Reader(calls, len(tree.tokens), decoder.config.sliding_windows, ends)


def mask_reader(mask: Tensor, positions: Tensor, decoder: Decoder) -> Reader:
    """The reader of T tokens under any mask (T, T), True = may attend, at position ids (T,).

    What a row sees, in the order of positions, is a prompt if the row is its last. Its queries are
    the rows that see all before them. All other rows are queries in one call."""
    mask, positions = mask.cpu(), positions.cpu()
    is_open, prompts, others = torch.ones(len(mask), dtype=torch.bool), [], []
    for row in reversed(range(len(mask))):
        if not is_open[row]:
            continue
        visible = mask[row].nonzero().flatten()
        path = visible[positions[visible].argsort(stable=True)]
        if path[-1] != row or (positions[path].diff() <= 0).any():
            others.append(row)
            continue
        rows_PT, count = mask[path], torch.arange(1, len(path) + 1)
        before = (rows_PT[:, path] == (count <= count[:, None])).all(dim=1)
        places = (is_open[path] & before & (rows_PT.sum(dim=1) == count)).nonzero().flatten()
        is_open[path[places]] = False
        prompts.append((torch.stack([path, positions[path]]), places.tolist()))
    calls = prompt_calls(prompts, decoder)
    if others:
        every = (torch.arange(len(mask))[None], positions[None])
        parts = (*(x[:, others] for x in every), *every, mask[others][None])
        rows, at, keys, of, seen = (x.to(decoder.device) for x in parts)
        calls.append(Calls(rows, at, keys, of, mask=seen))
    return Reader(calls, len(mask), decoder.config.sliding_windows)


@torch.inference_mode()
def numbers_of_queries(decoder: Decoder) -> tuple[int, ...]:
    """How many queries a call may have: BLOCK, and those of FEW that give the same bits as BLOCK,
    with near and with far keys. This is tried on a CPU; elsewhere nothing is known."""
    config, numbers = decoder.config, (*(number for number in FEW if number < BLOCK), BLOCK)
    H, K, h = config.num_attention_heads, config.num_key_value_heads, config.head_dim
    about = (attention_call, numbers, H, K, h, decoder.dtype, torch.get_num_threads())
    if decoder.device.type != "cpu" or about in _tried:
        return _tried.get(about, numbers)
    generator = torch.Generator().manual_seed(0)
    for S in (BLOCK, 2 * BLOCK, 9 * BLOCK):
        q, k, v = (torch.randn(n, m, h, generator=generator) for n, m in ((8, H), (S, K), (S, K)))
        # Each key comes twice, with opposite values: a kernel returns its rounding errors.
        order = torch.randperm(S, generator=generator)
        k[order[S // 2 :]], v[order[S // 2 :]] = k[order[: S // 2]], -v[order[: S // 2]]
        q, k, v = (x.to(decoder.dtype) for x in (q, k, v))

        def call(rows: Tensor, k: Tensor = k, v: Tensor = v) -> Tensor:
            near = len(k) <= 2 * BLOCK
            mask = torch.ones(1, len(rows), len(k), dtype=torch.bool) if near else None
            out, sums = attention_call(rows[None], k[None], v[None], mask)
            return torch.cat([out[0].to(sums.dtype), sums[0, ..., None]], dim=-1)

        classes = map(tuple, alike(call, q, numbers))
        numbers = next((x for x in classes if numbers[-1] in x), numbers[-1:])
    return _tried.setdefault(about, numbers)
