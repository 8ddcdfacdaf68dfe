"""Exercise 11: a state that begins at its parent.

Many models read in most layers not by attention but from a state, which each token changes and
hands on. In one prompt it comes from the token before. In a packed row the token before may be of
another branch. Then the state must come from the parent: the last token that the row of the mask
shows, before the token itself. In a tree the mask is all that such a layer needs to know.

Here a head's state is a matrix. Token t fades it, adds the outer product of its key and its value,
and reads it at its query: in one prompt

    state[t] = exp(g[t]) * state[t - 1] + outer(k[t], v[t])
    out[t]   = q[t] @ state[t]

This is Mamba-2's rule, for one head. Before the first token the state is zero.

Dimension legend: T tokens, k and v sizes of a key and a value.
"""

from __future__ import annotations

import torch
from torch import Tensor


def by_states(q_Tk: Tensor, k_Tk: Tensor, v_Tv: Tensor, g_T: Tensor, mask_TT: Tensor) -> Tensor:
    """What each token reads, (T, v): token by token, from the state after its parent, the
    last row before it that `mask_TT` shows: (T, T) bool, of a tree, True = the row's token may
    attend to the column's. A state may be continued by several tokens.

    >>> mask = torch.tensor([[1, 0, 0], [1, 1, 0], [1, 0, 1]]).bool()
    >>> ones, values = torch.ones(3, 1), torch.tensor([[1.0], [2.0], [4.0]])
    >>> by_states(ones, ones, values, torch.zeros(3), mask).tolist()
    [[1.0], [3.0], [5.0]]
    """
    nothing = v_Tv.new_zeros(k_Tk.shape[1], v_Tv.shape[1])
    states: list[Tensor] = []
    outs = []
    for t in range(len(mask_TT)):
        before = mask_TT[t, :t].nonzero().flatten().tolist()
        state = states[before[-1]] if before else nothing
        state = g_T[t].exp() * state + torch.outer(k_Tk[t], v_Tv[t])
        states.append(state)
        outs.append(q_Tk[t] @ state)
    return torch.stack(outs)


def by_mask(q_Tk: Tensor, k_Tk: Tensor, v_Tv: Tensor, g_T: Tensor, mask_TT: Tensor) -> Tensor:
    """The same without any state: (T, v). Let G be the sum of g along a token's path, its own g
    too. What token j wrote has faded by exp(G[i] - G[j]) when token i reads it. So a token reads
    the values that the mask shows, each weighted by q[i] . k[j] and by how far it has faded. No
    loop over tokens is needed.
    """
    G_T = mask_TT.to(g_T.dtype) @ g_T
    # Where the mask shows nothing, G may rise, and exp would overflow: it is hidden before.
    difference_TT = (G_T[:, None] - G_T).masked_fill(~mask_TT, -torch.inf)
    return (q_Tk @ k_Tk.T * difference_TT.exp()) @ v_Tv
