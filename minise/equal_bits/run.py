"""Run the decoder so that a row's bits do not depend on what runs beside it.

Each function computes what that of its name in minise/model.py does. A decoder is a refined one.
"""

from __future__ import annotations

import torch
from torch import Tensor

from minise.equal_bits.attention import BLOCK, mask_reader, tree_reader
from minise.equal_bits.layers import linear
from minise.layout import Tree
from minise.model import Decoder, expanded


def forward(decoder: Decoder, tokens: Tensor, positions: Tensor, mask: Tensor) -> Tensor:
    """`Decoder.forward` of one sequence, with the same errors: hidden states (T, D)."""
    tokens, positions, mask = expanded(tokens, positions, mask)
    attend = mask_reader(mask, positions, decoder).attend
    return decoder.run(tokens[None], positions[None], attend)[0]


def read_ends(decoder: Decoder, tree: Tree) -> Tensor:
    """The engine tree: hidden states (G, D) after the final norm, at the tree's ends. Each token of
    the tree is computed once, and in the top layer only the ends are."""
    device, attend = decoder.device, tree_reader(tree, decoder).attend
    tokens, positions, ends = (x.to(device) for x in (tree.tokens, tree.positions, tree.ends))
    return decoder.run(tokens[None], positions[None], attend, rows=ends)[0]


def logits(decoder: Decoder, hidden: Tensor, columns: Tensor | None = None) -> Tensor:
    """`Decoder.logits` of hidden states (G, D): (G, V), or (G, C) for token ids `columns` (C,)."""
    head = decoder.model.embed_tokens if decoder.lm_head is None else decoder.lm_head
    if columns is None:
        return linear(hidden, head.weight)
    # Dot products, one by one: in a matrix product a column's bits depend on its place.
    wide = torch.promote_types(hidden.dtype, torch.float32)
    parts = head.weight[columns].to(wide).split(BLOCK)
    products = []
    for x in hidden.to(wide).split(BLOCK):
        products.append(torch.cat([(x[:, None] * part).sum(dim=-1) for part in parts], dim=-1))
    return torch.cat(products).to(hidden.dtype)
