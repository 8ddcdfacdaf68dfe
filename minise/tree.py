"""The tree engine: each distinct token once, attention only to its ancestors, and at the top layer
only the rows that are read.

Everything but attention works token by token, so on a tree it is done once per distinct token,
for all the prompts that pass through. Attention is done prompt by prompt: the branches beyond the
common trunk, padded to one length, are a batch of plain causal prompts whose keys are the trunk's
and their own. A token that several branches share gives the same result in each, since its
ancestors are the same, and one is kept. So no mask of the whole sequence is built; and the padding,
which comes after a branch's tokens, is never seen by them. That is why the numbers are exact.

Dimension legend, beside model.py's: G branches, L length of the longest beyond the trunk, P trunk
length, S = P + L.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from minise.layout import Layout, causal_mask
from minise.model import Decoder, masked_attention
from minise.rope import rotation


class Branches:
    """Where the prompts of a tree lie: index tensors, made once per layout for every layer."""

    def __init__(self, layout: Layout, device: torch.device) -> None:
        T, paths = len(layout.tokens), layout.paths()
        # The trunk: rows 0, 1, ... that every prompt begins with, short of any prompt's end.
        shortest = min(map(len, paths)) - 1
        self.trunk = next((i for i in range(shortest) if any(p[i] != i for p in paths)), shortest)
        P, longest = self.trunk, max(map(len, paths))
        self.keys_GS = torch.tensor([p + p[-1:] * (longest - len(p)) for p in paths]).to(device)
        slots: dict[int, int] = {}
        for g, path in enumerate(paths):
            for place, row in enumerate(path[P:]):
                slots.setdefault(row, g * (longest - P) + place)
        # Of each row beyond the trunk, one of the places where it stands among the branches.
        self.place_T = torch.tensor([slots[row] for row in range(P, T)]).to(device)
        self.ends_G = torch.tensor([len(p) - 1 for p in paths]).to(device)
        self.causal_SS = causal_mask(longest).to(device)
        self.index_S = torch.arange(longest, device=device)

    def visible(self, window: int | None) -> Tensor:
        """(S, S) bool. In a prompt, index is position: a window is plain here."""
        if window is None:
            return self.causal_SS
        return self.causal_SS & (self.index_S[:, None] - self.index_S < window)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, window: int | None) -> Tensor:
        """Every token reads its ancestors: (1, T, H, h)."""
        P, H, K = self.trunk, q.shape[2], k.shape[2]
        mask_SS = self.visible(window)
        q_GLHh = q[0, self.keys_GS[:, P:]]
        k_GSKh, v_GSKh = k[0, self.keys_GS], v[0, self.keys_GS]
        # The H / K query heads of a key/value head are more queries for the same keys: side by
        # side in the length, where they need no copy of the keys.
        G, L, r = q_GLHh.shape[0], q_GLHh.shape[1], H // K
        q_GLrKh = q_GLHh.unflatten(2, (K, r)).transpose(2, 3).reshape(G, L * r, K, -1)
        mask_LrS = mask_SS[P:].repeat_interleave(r, dim=0)
        out = masked_attention(q_GLrKh, k_GSKh, v_GSKh, mask_LrS[None])
        out_GLHh = out.reshape(G, L, r, K, -1).transpose(2, 3).reshape(G * L, H, -1)
        beyond = out_GLHh[self.place_T][None]
        if P == 0:  # not every device's kernel takes an empty query
            return beyond
        trunk = masked_attention(q[:, :P], k[:, :P], v[:, :P], mask_SS[None, :P, :P])
        return torch.cat([trunk, beyond], dim=1)

    def attend_ends(self, q: Tensor, k: Tensor, v: Tensor, window: int | None) -> Tensor:
        """The ends alone, one query for each branch, read their prompts: (1, G, H, h)."""
        k_GSKh, v_GSKh = k[0, self.keys_GS], v[0, self.keys_GS]
        mask_GS = self.visible(window)[self.ends_G]
        return masked_attention(q.transpose(0, 1), k_GSKh, v_GSKh, mask_GS[:, None]).transpose(0, 1)


def read_ends(decoder: Decoder, layout: Layout) -> Tensor:
    """Hidden states after the final norm at the layout's ends: (G, D)."""
    device = decoder.model.embed_tokens.weight.device
    branches = Branches(layout, device)
    x_BTD = decoder.model.embed_tokens(layout.tokens.to(device))[None]
    turn = rotation(decoder.config, layout.positions.to(device)[None, :, None], x_BTD.dtype)
    *below, top = zip(decoder.model.layers, decoder.config.sliding_windows, strict=True)
    for layer, window in below:
        x_BTD = layer(x_BTD, turn, partial(branches.attend, window=window))
    # The top layer's output is read at the ends only: there it needs all keys and values, but no
    # other query, output or MLP.
    layer, window = top
    ends = layout.ends.to(device)
    x_BTD = layer(x_BTD, turn, partial(branches.attend_ends, window=window), rows=ends)
    return decoder.model.norm(x_BTD)[0]
