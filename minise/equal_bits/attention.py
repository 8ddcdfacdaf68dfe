"""Attention in calls of fixed shapes, so that a row's bits do not depend on what runs beside it.

A kernel chooses the order in which it sums by the shapes of its arguments. So every query reads its
keys in one way, in a prompt that runs alone, in a packed sequence and in a tree: what it sees, in
the order of positions, in calls whose results are joined by the logs of their sums:

    near   its own block of 64 places and the one before: 64 or 128 keys under a mask
    far    all blocks before these, without a mask if a layer has no window: 13 of them are read in
           stretches of 8, 4 and 1

The cuts depend on a token's place alone. So a stretch is read in one wide call: by as many blocks
of queries as it has, and by all prompts that begin alike. (On GPUs, Hydragen, Juravsky et al. 2024,
and bifurcated attention, Athiwaratkun et al. 2024, cut where the common beginning ends.)

It computes what `masked_attention` in minise/attention.py defines. The bits are equal if a kernel
computes a row in the same way in all calls of one shape, wherever the row is in the call.

Dimension legend, in addition to minise/attention.py's: N calls of one shape, with Q queries and S
keys each, and L = Q * H / K.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import inf
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function

from minise.attention import Windows, within
from minise.equal_bits.calls import split
from minise.equal_bits.probe import alike
from minise.layout import Tree
from minise.model import Decoder

BLOCK = 64  # positions; a call has so many queries
FEW, MANY = (8, 16, 32, 48), (256, 1024)  # or so many, where they have the bits of such a call
AT_ONCE = 2048  # queries in calls of one shape, on a CPU: of more the copies leave its cache
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


def joined(one: Part, other: Part) -> Part:
    """Both parts as one. Pair by pair, so a row's place is nothing."""
    if has_torch_function(one):
        return handle_torch_function(joined, one, one, other)
    pairs = torch.stack([one[1], other[1]], dim=-1)
    shares, sums = pairs.softmax(dim=-1), one[1] - pairs.log_softmax(dim=-1)[..., 0]
    return one[0] * shares[..., :1] + other[0] * shares[..., 1:], sums


def taken(x: Tensor, rows: Tensor) -> Tensor:
    """`x[rows]` (N, Q, ...), which takes four times as long."""
    return x.index_select(0, rows.flatten()).view(*rows.shape, *x.shape[1:])


@dataclass(frozen=True, eq=False)
class Calls:
    """N calls of one shape. queries: (N, Q) rows; the last fills empty places. keys: (N, S) rows.
    at, of: their positions. far: the keys are. mask: (1, Q, S), if not all before is seen."""

    queries: Tensor
    at: Tensor
    keys: Tensor
    of: Tensor
    far: bool = False
    mask: Tensor | None = None

    def seen(self, window: int | None) -> Tensor | None:
        """The mask (N or 1, Q, S), or None where everything is seen."""
        if self.far and window is None:
            return None
        mask = self.of[:, None] <= self.at[..., None] if self.mask is None else self.mask
        return within(mask, self.at, self.of, window)


@dataclass(eq=False)
class Reader:
    """`attend` for Decoder.run: how the T rows of a sequence read each other. With `ends` (G,) only
    these rows are queries in the top layer."""

    calls: Sequence[Calls]
    T: int
    windows: Windows
    ends: Tensor | None = None

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """(1, T, H, h), or in the top layer with `ends` (1, G, H, h)."""
        ends = self.ends if layer == len(self.windows) - 1 else None
        if ends is not None:
            q = q.new_zeros(1, self.T, *q.shape[2:]).index_copy(1, ends, q)
        q, k, v = q[0], k[0], v[0]
        # In the dtype of the sums, so that joining rounds little.
        wide = q.to(torch.promote_types(q.dtype, torch.float32))
        sums, out = (wide.new_empty(*q.shape[:2], *width) for width in ((), v.shape[2:]))
        for call in self.calls:
            queries, keys, mask = call.queries, call.keys, call.seen(self.windows[layer])
            part = attention_call(taken(q, queries), taken(k, keys), taken(v, keys), mask)
            if call.far:
                part = joined((taken(out, queries), taken(sums, queries)), part)
            out[queries], sums[queries] = part[0].to(out.dtype), part[1]
        return (out if ends is None else out[ends]).to(v.dtype)[None]


def prompt_calls(prompts: Iterable[Prompt], decoder: Decoder) -> list[Calls]:
    """The calls of prompts, in which a token sees all before it: of near keys, then of far ones."""
    numbers, device = numbers_of_queries(decoder), decoder.device
    kinds: dict[tuple[Any, ...], list[tuple[Tensor, Tensor]]] = {}  # queries and keys of each call
    shared: dict[tuple[int, ...], tuple[Tensor, list[Tensor]]] = {}  # far keys, all their queries

    def add(queries: Tensor, keys: Tensor, far: bool) -> None:
        last = queries.shape[1] - 1
        number = min(number for number in numbers if number > last)
        queries = queries[:, torch.arange(number).clamp(max=last)]
        kinds.setdefault((far, keys.shape[1], number), []).append((queries, keys))

    for path, places in prompts:
        for block, some in groupby(places, key=lambda place: place // BLOCK):
            queries = path[:, list(some)]
            place = torch.arange(max(0, block - 1) * BLOCK, (block + 1) * BLOCK)
            beyond = (place - path.shape[1] + 1).clamp(min=0)  # the end: at positions nobody sees
            near = path[:, place - beyond] + beyond * torch.tensor([[0], [1]])
            add(queries, near, False)
            for start, end in stretches(block - 1):
                # Prompts that share the last of these keys share all.
                key = start, end, int(path[0, end - 1])
                shared.setdefault(key, (path[:, start:end], []))[1].append(queries)
    for keys, every in shared.values():
        queries = torch.cat(every, dim=1)
        for number in split(queries.shape[1], numbers, FEW[0]):
            add(queries[:, :number], keys, True)
            queries = queries[:, number:]

    calls = []
    for (far, _, number), same in kinds.items():
        size = AT_ONCE // number if device.type == "cpu" else len(same)
        for start in range(0, len(same), size):
            both = map(torch.stack, zip(*same[start : start + size], strict=True))
            (rows, at), (keys, of) = (x.unbind(dim=1) for x in both)
            rows, at, keys, of = (x.to(device) for x in (rows, at, keys, of))
            calls.append(Calls(rows, at, keys, of, far))
    return sorted(calls, key=lambda call: -call.keys.shape[1] if call.far else -inf)


def stretches(blocks: int) -> Iterator[tuple[int, int]]:
    """Where the stretches of so many blocks begin and end, the longest first."""
    for bit in reversed(range(max(0, blocks).bit_length())):
        start = blocks >> bit + 1 << bit + 1
        if blocks >> bit & 1:
            yield start * BLOCK, (start + (1 << bit)) * BLOCK


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
    """How many queries a call may have: BLOCK, and those of FEW and MANY that give the same bits,
    with near and with far keys. This is tried on a CPU; elsewhere nothing is known."""
    config, numbers = decoder.config, (*(number for number in FEW if number < BLOCK), BLOCK, *MANY)
    H, K, h = config.num_attention_heads, config.num_key_value_heads, config.head_dim
    about = (attention_call, numbers, H, K, h, decoder.dtype, torch.get_num_threads())
    if decoder.device.type != "cpu" or about in _tried:
        return _tried.get(about, numbers)
    generator = torch.Generator().manual_seed(0)
    for S, near in ((BLOCK, True), (2 * BLOCK, True), *((BLOCK << n, False) for n in range(5))):
        q, k, v = (torch.randn(n, m, h, generator=generator) for n, m in ((8, H), (S, K), (S, K)))
        # Each key comes twice, with opposite values: a kernel returns its rounding errors.
        order = torch.randperm(S, generator=generator)
        k[order[S // 2 :]], v[order[S // 2 :]] = k[order[: S // 2]], -v[order[: S // 2]]
        q, k, v = (x.to(decoder.dtype) for x in (q, k, v))

        def call(rows: Tensor, k: Tensor = k, v: Tensor = v, near: bool = near) -> Tensor:
            mask = torch.ones(1, len(rows), len(k), dtype=torch.bool) if near else None
            out, sums = attention_call(rows[None], k[None], v[None], mask)
            return torch.cat([out[0].to(sums.dtype), sums[0, ..., None]], dim=-1)

        classes = map(tuple, alike(call, q, numbers))
        numbers = next((x for x in classes if BLOCK in x), (BLOCK,))
    return _tried.setdefault(about, numbers)
