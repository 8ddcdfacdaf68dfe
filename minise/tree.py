"""The tree engine: each distinct token once, attention only to its ancestors, and in the top layer
only the rows that are read.

Everything but attention works token by token. On a tree it is done once for each distinct token,
for all the prompts that pass through it. Attention is done prompt by prompt: the branches beyond
the common prefix, padded to one length, are a batch of plain causal prompts whose keys are the
prefix's and their own. A token that several branches share gets the same result in each, since its
ancestors are the same, and one result is kept. So no mask of the whole sequence is built. The
padding comes after a branch's tokens, and so they never see it: the numbers are exact.

Dimension legend, beside model.py's: G branches, P length of the common prefix, L length of the
longest branch beyond it, S = P + L, r = H / K.
"""

from __future__ import annotations

import torch
from torch import Tensor

from minise.layout import Tree, causal_mask
from minise.model import Decoder, masked_attention


class Branches:
    """Where the prompts of a tree lie: index tensors, made once per layout for every layer."""

    def __init__(self, tree: Tree, windows: tuple[int | None, ...], device: torch.device) -> None:
        T, paths = len(tree.tokens), tree.paths()
        self.windows = windows
        # The common prefix: rows 0, 1, ... with which every prompt begins, short of any one's end.
        shortest = min(map(len, paths)) - 1
        self.prefix = next((i for i in range(shortest) if any(p[i] != i for p in paths)), shortest)
        P, longest = self.prefix, max(map(len, paths))
        self.keys_GS = torch.tensor([p + p[-1:] * (longest - len(p)) for p in paths]).to(device)
        slots: dict[int, int] = {}
        for g, path in enumerate(paths):
            for place, row in enumerate(path[P:]):
                slots.setdefault(row, g * (longest - P) + place)
        # For each row beyond the prefix, one of the places where it stands among the branches.
        self.place_T = torch.tensor([slots[row] for row in range(P, T)]).to(device)
        self.ends_G = torch.tensor([len(p) - 1 for p in paths]).to(device)
        self.causal_SS = causal_mask(longest).to(device)
        self.index_S = torch.arange(longest, device=device)

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Every token reads its ancestors: (1, T, H, h). In the top layer the ends alone read, one
        query for each branch: (1, G, H, h)."""
        mask_SS = self._visible(self.windows[layer])
        k_GSKh, v_GSKh = k[0, self.keys_GS], v[0, self.keys_GS]
        if layer == len(self.windows) - 1:
            mask_GS = mask_SS[self.ends_G]
            ends = masked_attention(q.transpose(0, 1), k_GSKh, v_GSKh, mask_GS[:, None])
            return ends.transpose(0, 1)
        P, H, K = self.prefix, q.shape[2], k.shape[2]
        q_GLHh = q[0, self.keys_GS[:, P:]]
        # The H / K query heads of a key/value head are more queries for the same keys. Side by side
        # in the length they need no copy of the keys.
        G, L, r = q_GLHh.shape[0], q_GLHh.shape[1], H // K
        q_GLrKh = q_GLHh.unflatten(2, (K, r)).transpose(2, 3).reshape(G, L * r, K, -1)
        mask_LrS = mask_SS[P:].repeat_interleave(r, dim=0)
        out = masked_attention(q_GLrKh, k_GSKh, v_GSKh, mask_LrS[None])
        out_GLHh = out.reshape(G, L, r, K, -1).transpose(2, 3).reshape(G * L, H, -1)
        beyond = out_GLHh[self.place_T][None]
        if P == 0:  # not every device's kernel takes an empty query
            return beyond
        prefix = masked_attention(q[:, :P], k[:, :P], v[:, :P], mask_SS[None, :P, :P])
        return torch.cat([prefix, beyond], dim=1)

    def _visible(self, window: int | None) -> Tensor:
        """(S, S) bool. In a prompt, index is position: a window needs nothing more."""
        if window is None:
            return self.causal_SS
        return self.causal_SS & (self.index_S[:, None] - self.index_S < window)


def read_ends(decoder: Decoder, tree: Tree) -> Tensor:
    """Hidden states after the final norm at the tree's ends: (G, D)."""
    device = decoder.device
    branches = Branches(tree, decoder.config.sliding_windows, device)
    tokens, positions = tree.tokens.to(device)[None], tree.positions.to(device)[None]
    hidden = decoder.run(tokens, positions, branches.attend, rows=tree.ends.to(device))
    return hidden[0]
