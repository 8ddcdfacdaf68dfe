"""Known mistakes of recurrent layers in packed rows, planted: each is a mask that a part of these
layers is given in place of the right one. Attention stays right."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from minise.lab.recurrent import along
from minise.lab.recurrent.chunks import decay_of, products
from minise.layout import causal_mask, pack

PAD = 16  # tokens of padding, and of a sliding window


@dataclass(frozen=True)
class Row:
    """A packed row. seen: the right mask. conv, state, read, decay: the masks of what a convolution
    reads, of what a token finds when it writes, of what it reads, and of the sums of decays. beta:
    the row whose beta a token takes. ends: the last rows of the branches."""

    tokens: Tensor
    positions: Tensor
    ends: Tensor
    seen: Tensor
    conv: Tensor
    state: Tensor
    read: Tensor
    decay: Tensor
    beta: Tensor

    def with_mask(self, mask: Tensor, *parts: str) -> Row:
        """The same with another mask for these parts; by default for all of a recurrent layer."""
        return replace(self, **dict.fromkeys(parts or ("conv", *STATE), mask))


STATE = ("state", "read", "decay")


@dataclass(frozen=True)
class Prompts:
    prefix: list[int]
    branches: list[list[int]]

    def starts(self) -> list[int]:
        """The row of each branch's first token in the packed row."""
        starts = [len(self.prefix)]
        for branch in self.branches[:-1]:
            starts.append(starts[-1] + len(branch))
        return starts


def some_prompts(seed: int) -> Prompts:
    """A beginning of 40 tokens and 6 branches of 8 to 12."""
    draw = random.Random(seed)

    def ids(count: int) -> list[int]:
        return [draw.randrange(1, 288) for _ in range(count)]

    return Prompts(ids(40), [ids(draw.randrange(8, 13)) for _ in range(6)])


def row_of(prompts: Prompts, at: int = 0, extra: tuple[int, ...] = ()) -> Row:
    """The packed row, with extra tokens before row `at`, which no other token should see."""
    layout = pack(prompts.prefix, prompts.branches)
    T, n = len(layout.tokens), len(extra)
    own = torch.cat([torch.arange(at), torch.arange(at + n, T + n)])
    seen = torch.eye(T + n, dtype=torch.bool)
    seen[own[:, None], own] = layout.mask
    tokens, positions = torch.zeros(T + n).long(), torch.zeros(T + n).long()
    tokens[own], positions[own] = layout.tokens, layout.positions
    tokens[at : at + n] = torch.tensor(extra).long()
    every = dict.fromkeys(("conv", *STATE), seen)
    return Row(tokens, positions, own[layout.ends], seen, **every, beta=torch.arange(T + n))


def on_the_way(row: Row, at: int, count: int) -> Tensor:
    """The mask in which the `count` extra tokens before row `at` lie on all later tokens' ways."""
    mask = row.seen.clone()
    mask[at + count :, at : at + count] = True
    mask[at : at + count, :at] = True
    mask[at : at + count, at : at + count] = causal_mask(count)
    return mask


def without_the_beginning(prompts: Prompts, row: Row) -> Tensor:
    P = len(prompts.prefix)
    mask = row.seen.clone()
    mask[P:, :P] = False
    return mask


def rolled_back_too_far(prompts: Prompts, row: Row) -> Tensor:
    P = len(prompts.prefix)
    mask = row.seen.clone()
    mask[P:, P - 1] = False
    return mask


def rolled_back_too_little(prompts: Prompts, row: Row) -> Tensor:
    mask = row.seen.clone()
    mask[prompts.starts()[1] :, len(prompts.prefix)] = True
    return mask


def padded_left(prompts: Prompts, *parts: str) -> Row:
    row = row_of(prompts, 0, (0,) * PAD)
    return row.with_mask(on_the_way(row, 0, PAD), *parts)


def padded_right(prompts: Prompts, *parts: str) -> Row:
    P = len(prompts.prefix)
    row = row_of(prompts, P, (0,) * PAD)
    return row.with_mask(on_the_way(row, P, PAD), *parts)


def ran_twice(prompts: Prompts) -> Row:
    P = len(prompts.prefix)
    row = row_of(prompts, P, (prompts.prefix[-1],))
    row.positions[P] = P - 1
    return row.with_mask(on_the_way(row, P, 1))


def whole(row: Row) -> Tensor:
    return causal_mask(len(row.tokens))


def row_before(row: Row) -> Tensor:
    return torch.arange(len(row.tokens)).sub(1).clamp(min=0)


def another_branch(prompts: Prompts, row: Row) -> Tensor:
    """As if the first branch were not there."""
    rows = torch.arange(len(row.tokens))
    second = prompts.starts()[1]
    rows[second:] -= len(prompts.branches[0])
    return rows


def window(row: Row) -> Tensor:
    return row.seen & (row.positions[:, None] < row.positions + PAD)


def plain(change: Callable[[Prompts, Row], Row]) -> Callable[[Prompts], Row]:
    """A mistake in the row without extra tokens."""
    return lambda prompts: change(prompts, row_of(prompts))


# The mistakes by their names.
MISTAKES: dict[str, Callable[[Prompts], Row]] = {
    "convolution and state go on over borders": plain(lambda p, r: r.with_mask(whole(r))),
    "the state goes on over borders": plain(lambda p, r: r.with_mask(whole(r), *STATE)),
    "the convolution goes on over borders": plain(lambda p, r: r.with_mask(whole(r), "conv")),
    "each branch begins with nothing": plain(lambda p, r: r.with_mask(without_the_beginning(p, r))),
    "the state begins with nothing": plain(
        lambda p, r: r.with_mask(without_the_beginning(p, r), *STATE)
    ),
    "the convolution begins with nothing": plain(
        lambda p, r: r.with_mask(without_the_beginning(p, r), "conv")
    ),
    "decays are summed over the row": plain(lambda p, r: r.with_mask(whole(r), "decay")),
    "the mask is on what is read, not on what is written": plain(
        lambda p, r: r.with_mask(whole(r), "state")
    ),
    "the mask is on what is written, not on what is read": plain(
        lambda p, r: r.with_mask(whole(r), "read")
    ),
    "beta is that of the row before": plain(lambda p, r: replace(r, beta=row_before(r))),
    "beta is that of another branch": plain(lambda p, r: replace(r, beta=another_branch(p, r))),
    "rolled back one token too far": plain(lambda p, r: r.with_mask(rolled_back_too_far(p, r))),
    "rolled back one token too little": plain(
        lambda p, r: r.with_mask(rolled_back_too_little(p, r))
    ),
    "the mask is narrowed to the window of attention": plain(lambda p, r: r.with_mask(window(r))),
    "padding on the left enters convolution and state": padded_left,
    "padding on the left enters the state": lambda p: padded_left(p, *STATE),
    "convolution and state are read at the end of the padded prompt": padded_right,
    "the state is read at the end of the padded prompt": lambda p: padded_right(p, *STATE),
    "the last token of the beginning ran twice": ran_twice,
}


@dataclass(frozen=True)
class Wrong:
    """What stands for the paths of a pass: a row with its masks."""

    row: Row


def wrong_convolution(x_TD: Tensor, weight_DN: Tensor, bias: None, paths: Wrong) -> Tensor:
    """By the mask of the convolution, which need not be a tree."""
    T, N = len(x_TD), weight_DN.shape[1]
    numbers = torch.arange(1, T + 1)
    last_TN = (paths.row.conv * numbers).topk(N, dim=-1).values - 1
    padded = torch.cat([x_TD, x_TD.new_zeros(1, x_TD.shape[1])])
    taps_TN = torch.where(last_TN < 0, T, last_TN)
    return (padded[taps_TN] * weight_DN.flip(-1).T).sum(dim=1)


def wrong_rule(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, paths: Wrong) -> Tensor:
    """The closed form in one piece, with a mask for each part."""
    row = paths.row
    q_HTk, k_HTk, v_HTv = (x.transpose(0, 1) for x in (q, k, v))
    G_HT1 = (row.decay.double() @ g[..., 0]).T[..., None]
    written = decay_of(G_HT1, G_HT1, row.state, q.dtype).clamp(max=1)
    is_read = decay_of(G_HT1, G_HT1, row.read, q.dtype).clamp(max=1)
    beta_HT1 = beta[row.beta].T[..., None]
    below = (beta_HT1 * products(k_HTk, k_HTk, written)).tril(-1)
    u_HTv = torch.linalg.solve_triangular(below, beta_HT1 * v_HTv, upper=False, unitriangular=True)
    return (products(q_HTk, k_HTk, is_read) @ u_HTv).transpose(0, 1)


@contextmanager
def planted(row: Row) -> Any:
    """Let the recurrent layers of every Qwen3.5 compute by the masks of a row."""
    with (
        mock.patch.object(along, "paths_of", return_value=Wrong(row)),
        mock.patch.object(along, "convolve", wrong_convolution),
        mock.patch.object(along, "by_chunks", wrong_rule),
    ):
        yield
