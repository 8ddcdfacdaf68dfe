"""The rule of all layers with a state, by its definition: a token continues from its parent.

A head's state is a matrix (k, v): what is written at a key can be read at a key like it. A token
with query q, key k, value v and decay g <= 0 does four things to its parent's state:

    fade       state = exp(g) * state
    correct    u = beta * (v - k . state)      or, where nothing is corrected, u = v
    write      state = state + k u^T
    read       out = q . state

This is the gated delta rule. The layers that are in use differ in three facts:

    layer                        decay g               correct   q, k, v
    Gated DeltaNet               of a head             yes       q, k of length 1
    KDA                          of a head's channel   yes       q, k of length 1
    Mamba-2                      of a head, a dt       no        C, B, dt x
    lightning attention          fixed for a head      no        q, k, v
    Mamba                        of a channel, a dt    no        C, B, dt x; each channel is a head
    RG-LRU                       of a channel          no        1, 1, x; each channel is a head

Sources: Gated DeltaNet (arXiv 2412.06464), Kimi Linear's KDA (2510.26692), Mamba (2312.00752),
Mamba-2 (2405.21060), lightning attention (2405.17381), RG-LRU (Griffin, 2402.19427). How q, k and g
come from the layer's input, and what norms and scales them, is the layer's own affair.

Dimension legend: T tokens in one sequence, no batch; R of them, of one depth; S states before the
first tokens; H heads; k, v sizes of a key and a value; n is 1 (a decay for a head) or k (one for
each of its channels).
Next to read: chunks.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from minise.lab.recurrent.paths import Paths


def by_steps(
    q_THk: Tensor, k_THk: Tensor, v_THv: Tensor, g_THn: Tensor, beta_TH: Tensor | None, paths: Paths
) -> Tensor:
    """What each token reads, (T, H, v), depth by depth. beta: None where nothing is corrected. The
    states of one depth are kept, so a tree of many branches takes a state for each."""
    first_1Hkv = v_THv.new_zeros(1, v_THv.shape[1], k_THk.shape[-1], v_THv.shape[-1])
    begins_T = paths.parents.new_zeros(len(paths.parents))
    outs, order = [], []
    for depth in each_depth(q_THk, k_THk, v_THv, g_THn, beta_TH, paths, first_1Hkv, begins_T):
        outs.append(depth.out_RHv)
        order.append(depth.rows)
    return torch.cat(outs)[torch.cat(order).argsort()]


@dataclass(frozen=True, eq=False)
class Depth:
    """The tokens of one depth, their states after them, and what they read."""

    rows: Tensor
    states_RHkv: Tensor
    out_RHv: Tensor


def each_depth(
    q_THk: Tensor,
    k_THk: Tensor,
    v_THv: Tensor,
    g_THn: Tensor,
    beta_TH: Tensor | None,
    paths: Paths,
    first_SHkv: Tensor,
    begins_T: Tensor,
) -> Iterator[Depth]:
    """The rule, from states before the first tokens. begins: from which of these a token without a
    parent continues."""
    place = begins_T.clone()  # where each token's state lies among those of its depth
    states_RHkv = first_SHkv
    for depth in range(int(paths.depths.max()) + 1):
        rows = (paths.depths == depth).nonzero().flatten()
        before = place[rows] if depth == 0 else place[paths.parents[rows]]
        k_RHk = k_THk[rows]
        states_RHkv = states_RHkv[before] * g_THn[rows].exp()[..., None]
        u_RHv = v_THv[rows]
        if beta_TH is not None:
            found_RHv = torch.einsum("rhkv,rhk->rhv", states_RHkv, k_RHk)
            u_RHv = beta_TH[rows][..., None] * (u_RHv - found_RHv)
        states_RHkv = states_RHkv + k_RHk[..., None] * u_RHv[..., None, :]
        yield Depth(rows, states_RHkv, torch.einsum("rhkv,rhk->rhv", states_RHkv, q_THk[rows]))
        place[rows] = torch.arange(len(rows), device=place.device)
