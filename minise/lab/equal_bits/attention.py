"""Attention in calls of fixed shapes, so that a row's bits do not depend on what runs beside it.

A kernel chooses the order in which it sums by the shapes of its arguments. So every query reads its
keys in one way, whether its prompt runs alone, in a packed sequence or in a tree. What a row sees,
in the order of positions, is a prompt. A prompt is cut into blocks of 64 places:

    near   a query's own block and the one before: 64 or 128 keys, under a mask
    far    all blocks before these, in one call, without a mask if the layer has no window

The logs of their sums join the two. The cuts depend on a query's place in its prompt alone. So all
prompts that begin alike read their far keys in one call. (On GPUs, Hydragen, Juravsky et al. 2024,
and bifurcated attention, Athiwaratkun et al. 2024, cut where the common beginning ends.)

It computes what minise/attention.py defines. The bits are equal if a kernel computes a row in the
same way in all calls of one shape, wherever the row is in the call.

Dimension legend, in addition to minise/attention.py's: N calls of one shape, with Q queries and S
keys each, and L = Q * H / K; P tokens of a prompt.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function

from minise.attention import Windows, within
from minise.lab.equal_bits.calls import sizes_of_calls
from minise.lab.equal_bits.probe import alike
from minise.model import Decoder

BLOCK = 64  # places of a prompt, and queries of a call
# Other numbers of queries, where a query has the same bits in such a call as in one of BLOCK.
FEW = (8, 16, 32, 48)
MANY = (256, 1024)
QUERIES_AT_ONCE = 2048  # in calls of one shape: of more the copies leave the CPU's cache
ROW = 16  # bytes: if a head is not a multiple of 16 bytes, MKL reads every second row differently
# Numbers of keys for which numbers of queries are tried. A kernel takes 512 keys at a time, and
# then the rest: so one with more far keys is made of these.
NEAR_KEYS = (BLOCK, 2 * BLOCK)
FAR_KEYS = (*range(BLOCK, 9 * BLOCK, BLOCK), 16 * BLOCK)

Part = tuple[Tensor, Tensor]  # what is read, (N, Q, H, h), and the log of the sum of exp, (N, Q, H)
_tried: dict[tuple[Any, ...], tuple[int, ...]] = {}  # results of `numbers_of_queries`


def attention_call(
    q_NQHh: Tensor, k_NSKh: Tensor, v_NSKh: Tensor, mask_NQS: Tensor | None = None
) -> Part:
    """softmax(q k^T / sqrt(h)) v with masked scores at -inf before the softmax."""
    # Query head i reads key/value head i // (H / K). The query heads of a key/value head are more
    # queries for the same keys: side by side in the length they need no copy of the keys.
    Q, H, h = q_NQHh.shape[1:]
    K = k_NSKh.shape[2]
    shared = H // K
    fill = -h % (ROW // q_NQHh.element_size())
    if fill:
        q_NQHh = F.pad(q_NQHh, (0, fill))
        k_NSKh = F.pad(k_NSKh, (0, fill))
        v_NSKh = F.pad(v_NSKh, (0, fill))
    q_NKLh = q_NQHh.unflatten(2, (K, shared)).permute(0, 2, 1, 3, 4).flatten(2, 3)
    k_NKSh = k_NSKh.transpose(1, 2)
    v_NKSh = v_NSKh.transpose(1, 2)
    mask = None
    if mask_NQS is not None:
        mask = mask_NQS.repeat_interleave(shared, dim=1)[:, None]
    out_NKLh, sums_NKL = kernel(q_NKLh, k_NKSh, v_NKSh, mask, h**-0.5)
    out_NKLh = out_NKLh[..., :h]
    out_NQHh = out_NKLh.unflatten(2, (Q, shared)).permute(0, 2, 1, 3, 4).flatten(2, 3)
    sums_NQH = sums_NKL.unflatten(2, (Q, shared)).transpose(1, 2).flatten(2, 3)
    return out_NQHh, sums_NQH


def kernel(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float) -> Part:
    """The kernel of `F.scaled_dot_product_attention`, which keeps the sums to itself. q (N, K, L,
    h), k and v (N, K, S, h), mask (N or 1, 1, L, S). A query that sees no key has a sum of 0."""
    if has_torch_function((q,)):
        return handle_torch_function(kernel, (q,), q, k, v, mask, scale)
    bias = None
    if mask is not None:
        bias = q.new_zeros(mask.shape).masked_fill(~mask, float("-inf"))
    call = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    out, sums = call(q, k, v, attn_mask=bias, scale=scale)
    if mask is not None:
        sums = sums.masked_fill(~mask.any(dim=-1), float("-inf"))
    return out, sums


def joined(one: Part, other: Part) -> Part:
    """Both parts as one. Pair by pair, so a row's place is nothing."""
    if has_torch_function(one):
        return handle_torch_function(joined, one, one, other)
    out_a, sums_a = one
    out_b, sums_b = other
    pairs = torch.stack([sums_a, sums_b], dim=-1)
    shares = pairs.softmax(dim=-1)
    sums = sums_a - pairs.log_softmax(dim=-1)[..., 0]
    return out_a * shares[..., :1] + out_b * shares[..., 1:], sums


def taken(x: Tensor, rows: Tensor) -> Tensor:
    """What `x[rows]` gives, (N, Q, ...), in a quarter of its time."""
    return x.index_select(0, rows.flatten()).view(*rows.shape, *x.shape[1:])


@dataclass(frozen=True, eq=False)
class Calls:
    """N calls of one shape. queries: (N, Q), which of the T queries; a call with fewer than Q
    repeats its last one. keys: (N, S), which of the U keys. query_positions, key_positions: the
    position ids of these. far: whether all keys stand before all queries. mask: (1, Q, S); None
    where a query sees all keys at its position and before."""

    queries: Tensor
    query_positions: Tensor
    keys: Tensor
    key_positions: Tensor
    far: bool = False
    mask: Tensor | None = None

    def seen(self, window: int | None) -> Tensor | None:
        """The mask (N or 1, Q, S), or None where everything is seen."""
        if self.far and window is None:
            return None
        mask = self.mask
        if mask is None:
            mask = self.key_positions[:, None] <= self.query_positions[..., None]
        return within(mask, self.query_positions, self.key_positions, window)


@dataclass(eq=False)
class Reader:
    """`attend` for the T tokens of one sequence: near calls first, then far ones. With `rows` (R,)
    only these are queries in the top layer."""

    calls: Sequence[Calls]
    T: int
    windows: Windows
    rows: Tensor | None = None

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """q (R, H, h), k and v (U, K, h) -> (R, H, h)."""
        rows = self.rows if layer == len(self.windows) - 1 else None
        if rows is not None:
            q = q.new_zeros(self.T, *q.shape[1:]).index_copy(0, rows, q)
        # In the dtype of the sums, so that joining rounds little.
        wide = q.to(torch.promote_types(q.dtype, torch.float32))
        sums = wide.new_empty(q.shape[:2])
        out = wide.new_empty(*q.shape[:2], v.shape[2])
        for call in self.calls:
            queries, keys = call.queries, call.keys
            mask = call.seen(self.windows[layer])
            read, read_sums = attention_call(
                taken(q, queries), taken(k, keys), taken(v, keys), mask
            )
            if call.far:
                near = taken(out, queries), taken(sums, queries)
                read, read_sums = joined(near, (read, read_sums))
            out[queries] = read.to(out.dtype)
            sums[queries] = read_sums
        if rows is not None:
            out = out[rows]
        return out.to(v.dtype)


def reader_of(
    mask_TU: Tensor, positions_U: Tensor, decoder: Decoder, rows: Tensor | None
) -> Reader:
    """The reader of T tokens under any mask (T, U), True = may attend, at position ids (U,)."""
    prompts, others = prompts_of(mask_TU, positions_U)
    calls = calls_of(prompts, numbers_of_queries(decoder))
    if others:
        calls.append(call_of_others(others, mask_TU, positions_U))
    return Reader(calls, len(mask_TU), decoder.config.sliding_windows, rows)


@dataclass(frozen=True, eq=False)
class Prompt:
    """The P tokens that a prompt's last token sees, in the order of positions. keys: (P,), which of
    the U keys they are. positions: (P,), their position ids. places: which of the P are queries of
    this prompt; a token in several prompts is a query of one. cached: how many of the U keys are no
    queries, because an earlier call ran them."""

    keys: Tensor
    positions: Tensor
    places: Tensor
    cached: int

    def places_by_block(self) -> dict[int, Tensor]:
        """The places in each block that has any, by the number of the block."""
        blocks = self.places // BLOCK
        found = {}
        for block in blocks.unique_consecutive().tolist():
            found[block] = self.places[blocks == block]
        return found


def prompts_of(mask_TU: Tensor, positions_U: Tensor) -> tuple[list[Prompt], list[int]]:
    """The prompts that a mask holds, and the queries that belong to none."""
    T, U = mask_TU.shape
    cached = U - T
    is_open = torch.ones(U, dtype=torch.bool)
    is_open[:cached] = False
    prompts, others = [], []
    for query in reversed(range(T)):
        if not is_open[cached + query]:
            continue
        seen = mask_TU[query].nonzero().flatten()
        keys = seen[positions_U[seen].argsort(stable=True)]
        in_order = (positions_U[keys].diff() > 0).all()
        if keys[-1] != cached + query or not in_order:
            others.append(query)
            continue
        # The tokens of this prompt that see all before them in it, and nothing else.
        places = is_open[keys].nonzero().flatten()
        mask_of_places = mask_TU[keys[places] - cached]
        before = torch.arange(len(keys)) <= places[:, None]
        sees_before = (mask_of_places[:, keys] == before).all(dim=1)
        sees_no_other = mask_of_places.sum(dim=1) == places + 1
        places = places[sees_before & sees_no_other]
        is_open[keys[places]] = False
        prompts.append(Prompt(keys, positions_U[keys], places, cached))
    return prompts, others


def call_of_others(others: list[int], mask_TU: Tensor, positions_U: Tensor) -> Calls:
    """One call for queries that see anything else, as in the ablations."""
    T, U = mask_TU.shape
    queries = torch.tensor(others)
    positions = positions_U[U - T :][queries]
    every = torch.arange(U)
    mask = mask_TU[queries]
    return Calls(queries[None], positions[None], every[None], positions_U[None], mask=mask[None])


@dataclass(frozen=True, eq=False)
class OneCall:
    """Q queries and S keys, with their positions: one of the N of `Calls`."""

    queries: Tensor
    query_positions: Tensor
    keys: Tensor
    key_positions: Tensor
    far: bool


def calls_of(prompts: Sequence[Prompt], numbers: tuple[int, ...]) -> list[Calls]:
    """The calls of prompts, near ones first. Calls of one shape run together."""
    same_shape: dict[tuple[bool, int, int], list[OneCall]] = {}
    for one in [*near_calls(prompts, numbers), *far_calls(prompts, numbers)]:
        shape = one.far, len(one.keys), len(one.queries)
        same_shape.setdefault(shape, []).append(one)
    calls = []
    for (far, _, number), ones in sorted(same_shape.items(), key=lambda item: item[0]):
        size = max(1, QUERIES_AT_ONCE // number)
        for start in range(0, len(ones), size):
            some = ones[start : start + size]
            queries = torch.stack([one.queries for one in some])
            query_positions = torch.stack([one.query_positions for one in some])
            keys = torch.stack([one.keys for one in some])
            key_positions = torch.stack([one.key_positions for one in some])
            calls.append(Calls(queries, query_positions, keys, key_positions, far))
    return calls


def near_calls(prompts: Sequence[Prompt], numbers: tuple[int, ...]) -> list[OneCall]:
    """A call for each block of each prompt: its queries, and the keys of it and the one before."""
    calls = []
    for prompt in prompts:
        P = len(prompt.keys)
        for block, places in prompt.places_by_block().items():
            read = torch.arange(max(0, block - 1) * BLOCK, (block + 1) * BLOCK)
            # Beyond its end a prompt goes on with its last key, at positions that nobody sees.
            beyond = (read - P + 1).clamp(min=0)
            keys = prompt.keys[read - beyond]
            key_positions = prompt.positions[read - beyond] + beyond
            queries = prompt.keys[places] - prompt.cached
            positions = prompt.positions[places]
            number = min(number for number in numbers if number >= len(places))
            filled = torch.arange(number).clamp(max=len(places) - 1)
            calls.append(
                OneCall(queries[filled], positions[filled], keys, key_positions, far=False)
            )
    return calls


def far_calls(prompts: Sequence[Prompt], numbers: tuple[int, ...]) -> list[OneCall]:
    """The calls in which queries read all keys before the block before their own. Prompts that
    share the last of these keys share all of them, so they read them together."""
    keys_of: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}
    queries_of: dict[tuple[int, int], list[Tensor]] = {}
    positions_of: dict[tuple[int, int], list[Tensor]] = {}
    for prompt in prompts:
        for block, places in prompt.places_by_block().items():
            end = (block - 1) * BLOCK
            if end <= 0:
                continue
            shared = end, int(prompt.keys[end - 1])
            keys_of[shared] = prompt.keys[:end], prompt.positions[:end]
            queries_of.setdefault(shared, []).append(prompt.keys[places] - prompt.cached)
            positions_of.setdefault(shared, []).append(prompt.positions[places])
    calls = []
    for shared, (keys, key_positions) in keys_of.items():
        queries = torch.cat(queries_of[shared])
        positions = torch.cat(positions_of[shared])
        start = 0
        for number in sizes_of_calls(len(queries), numbers, FEW[0]):
            filled = torch.arange(start, start + number).clamp(max=len(queries) - 1)
            calls.append(OneCall(queries[filled], positions[filled], keys, key_positions, far=True))
            start += number
    return calls


@torch.inference_mode()
def numbers_of_queries(decoder: Decoder) -> tuple[int, ...]:
    """How many queries a call may have: BLOCK, and those numbers of FEW and MANY that give the same
    bits as it, with near and with far keys."""
    config = decoder.config
    H, K, h = config.num_attention_heads, config.num_key_value_heads, config.head_dim
    few = [number for number in FEW if number < BLOCK]  # a proof sets a smaller BLOCK
    numbers = (*few, BLOCK, *MANY)
    about = (attention_call, numbers, H, K, h, decoder.dtype, torch.get_num_threads())
    if about in _tried:
        return _tried[about]
    generator = torch.Generator().manual_seed(0)
    for is_near, numbers_of_keys in ((True, NEAR_KEYS), (False, FAR_KEYS)):
        for S in numbers_of_keys:
            q = torch.randn(8, H, h, generator=generator)
            k = torch.randn(S, K, h, generator=generator)
            v = torch.randn(S, K, h, generator=generator)
            # Each key comes twice, with opposite values: a kernel returns its rounding errors.
            order = torch.randperm(S, generator=generator)
            first, second = order[: S // 2], order[S // 2 :]
            k[second] = k[first]
            v[second] = -v[first]
            read = partial(
                read_and_sums,
                k_SKh=k.to(decoder.dtype),
                v_SKh=v.to(decoder.dtype),
                is_near=is_near,
            )
            classes = alike(read, q.to(decoder.dtype), numbers)
            numbers = (BLOCK,)
            for alike_numbers in classes:
                if BLOCK in alike_numbers:
                    numbers = tuple(alike_numbers)
    _tried[about] = numbers
    return numbers


def read_and_sums(q_QHh: Tensor, k_SKh: Tensor, v_SKh: Tensor, is_near: bool) -> Tensor:
    """What one call gives, side by side: (Q, H, h + 1). Near keys are read under a mask."""
    mask = None
    if is_near:
        mask = torch.ones(1, len(q_QHh), len(k_SKh), dtype=torch.bool)
    out_NQHh, sums_NQH = attention_call(q_QHh[None], k_SKh[None], v_SKh[None], mask)
    return torch.cat([out_NQHh[0].to(sums_NQH.dtype), sums_NQH[0, ..., None]], dim=-1)
