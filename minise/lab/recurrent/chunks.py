"""The same rule without a state for each token: weights under the mask, as in attention.

Let G[i] be the sum of the log decays g (0 or less) along the path of token i, itself included: the
mask times g. What an ancestor j wrote has faded by exp(G[i] - G[j]) when i reads it. With

    decay[i, j] = exp(G[i] - G[j])  if mask[i, j], else 0

the state that i reads is the sum over j of decay[i, j] k[j] u[j]^T, and so

    out = ((q k^T) * decay) u

which is all where nothing is corrected (u = v: Mamba-2's duality, arXiv 2405.21060). Where it is, a
token writes what its ancestors have not written yet: u[i] = beta[i] (v[i] - k[i] . state), that is

    u = solve(I + (beta k k^T) * decay strictly below the diagonal, beta v)

a triangular system (DeltaNet's, arXiv 2406.06484; gated, 2412.06464). Only the mask knows that the
row is a tree: under a causal mask this is the form of a single prompt.

It runs in chunks of rows. A chunk solves its own corner of the system, after it has read from the
rows before: from those after the trunk one by one under the mask, and from the trunk, which all
later tokens continue, as from one state. This state is carried from chunk to chunk of the trunk, so
that a long beginning costs what it costs in a recurrent layer. In a chunk of the trunk G begins at
the chunk, after the trunk at its end: there the state is that a row continues. G is subtracted in
float64: its size grows along a path, and a difference may be small.

Dimension legend: T tokens in one sequence; C rows of a chunk; S earlier rows that it reads; H
heads; k, v sizes of a key and a value; n is 1 (a decay for a head) or k (one for each channel).
Next to read: convolution.py.
"""

from __future__ import annotations

import torch
from torch import Tensor

from minise.lab.recurrent.paths import Paths


def by_chunks(
    q_THk: Tensor, k_THk: Tensor, v_THv: Tensor, g_THn: Tensor, beta_TH: Tensor | None, paths: Paths
) -> Tensor:
    """What each token reads, (T, H, v): the numbers of `steps.by_steps`. beta: None where nothing
    is corrected. Memory: H x C x S numbers, k times as many where decays are of channels."""
    q_HTk, k_HTk, v_HTv = q_THk.transpose(0, 1), k_THk.transpose(0, 1), v_THv.transpose(0, 1)
    g_HTn = g_THn.transpose(0, 1).double()
    H, n = g_HTn.shape[0], g_HTn.shape[2]
    state_Hkv: Tensor | None = None  # after the chunks of the trunk that have run
    # G and u of the rows after the trunk that have run. sums[0] is G at the trunk's end, 0: so what
    # is counted from there has its place in `sums` one later, and in `written` at its number.
    sums = [g_HTn.new_zeros(H, 1, n)]
    written: list[Tensor] = []
    outs = []
    for chunk in paths.chunks:
        q_HCk, k_HCk = q_HTk[:, chunk.rows], k_HTk[:, chunk.rows]
        G_HCn = chunk.own_CC.double() @ g_HTn[:, chunk.rows]
        if not chunk.in_trunk:  # a path is its ancestors before the chunk, then those in it
            G_HCn = G_HCn + torch.cat(sums, dim=1)[:, chunk.before_C + 1]
            sums.append(G_HCn)

        # What the rows find and read of earlier ones: of the trunk, then of those after it.
        found_HCv: Tensor | float = 0.0
        out_HCv: Tensor | float = 0.0
        if state_Hkv is not None:
            faded_HCn = G_HCn.to(q_THk.dtype).exp()
            out_HCv = (q_HCk * faded_HCn) @ state_Hkv
            if beta_TH is not None:
                found_HCv = (k_HCk * faded_HCn) @ state_Hkv
        if len(chunk.earlier_S):
            G_HSn = torch.cat(sums, dim=1)[:, chunk.earlier_S + 1]
            k_HSk = k_HTk[:, paths.trunk + chunk.earlier_S]
            u_HSv = torch.cat(written, dim=1)[:, chunk.earlier_S]
            decay = decay_of(G_HCn, G_HSn, chunk.seen_CS, q_THk.dtype)
            out_HCv = out_HCv + products(q_HCk, k_HSk, decay) @ u_HSv
            if beta_TH is not None:
                found_HCv = found_HCv + products(k_HCk, k_HSk, decay) @ u_HSv

        # What they write, and what they read of each other.
        decay = decay_of(G_HCn, G_HCn, chunk.own_CC, q_THk.dtype)
        u_HCv = v_HTv[:, chunk.rows]
        if beta_TH is not None:
            beta_HC1 = beta_TH[chunk.rows].T[..., None]
            below_HCC = (beta_HC1 * products(k_HCk, k_HCk, decay)).tril(-1)
            wanted_HCv = beta_HC1 * (u_HCv - found_HCv)
            u_HCv = torch.linalg.solve_triangular(
                below_HCC, wanted_HCv, upper=False, unitriangular=True
            )
        outs.append(out_HCv + products(q_HCk, k_HCk, decay) @ u_HCv)

        if chunk.in_trunk:
            G_H1n = G_HCn[:, -1:]
            to_end_HCn = (G_H1n - G_HCn).to(q_THk.dtype).exp()
            new_Hkv = (k_HCk * to_end_HCn).mT @ u_HCv
            if state_Hkv is not None:
                new_Hkv = new_Hkv + G_H1n.mT.to(q_THk.dtype).exp() * state_Hkv
            state_Hkv = new_Hkv
        else:
            written.append(u_HCv)
    return torch.cat(outs, dim=1).transpose(0, 1)


def decay_of(G_HCn: Tensor, G_HSn: Tensor, seen_CS: Tensor, dtype: torch.dtype) -> Tensor:
    """exp(G[i] - G[j]) where i sees j, else 0: (H, C, S, n)."""
    difference_HCSn = (G_HCn[:, :, None] - G_HSn[:, None]).to(dtype)
    return difference_HCSn.masked_fill(~seen_CS[..., None], -torch.inf).exp()


def products(a_HCk: Tensor, b_HSk: Tensor, decay_HCSn: Tensor) -> Tensor:
    """(a[i] . b[j]) * decay[i, j]: (H, C, S). Decays of channels go inside the product."""
    if decay_HCSn.shape[-1] == 1:
        return (a_HCk @ b_HSk.mT) * decay_HCSn[..., 0]
    return torch.einsum("hck,hsk,hcsk->hcs", a_HCk, b_HSk, decay_HCSn)
