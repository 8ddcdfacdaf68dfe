"""Run the decoder so that a row's bits do not depend on what runs beside it.

Each function computes what the definition of its name in minise/model.py does. It takes a decoder
whose layers `refine` (layers.py) has replaced.
"""

from __future__ import annotations

import torch
from torch import Tensor

from minise.attention import Attend
from minise.cache import Cache, Growing
from minise.exact.attention import BLOCK, Reader, mask_reader, tree_reader
from minise.exact.layers import linear
from minise.layout import Tree
from minise.model import Decoder, expanded


def forward(decoder: Decoder, tokens: Tensor, positions: Tensor, mask: Tensor) -> Tensor:
    """`Decoder.forward`, with the same arguments and errors: hidden states (..., T, D)."""
    tokens, positions, mask = expanded(tokens, positions, mask)
    return _run(decoder, tokens, positions, _reader(decoder, mask, positions).attend)


def extend(
    decoder: Decoder, tokens: Tensor, positions: Tensor, mask: Tensor, cache: Cache | None = None
) -> tuple[Tensor, Cache]:
    """`Decoder.extend`: hidden states (..., T, D) and the longer cache."""
    tokens, positions, mask = expanded(tokens, positions, mask, cache)
    growing = Growing(cache, positions)
    reader = _reader(decoder, mask, growing.cache.positions)

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        k, v = growing.add(layer, *(x.reshape(*tokens.shape, *x.shape[-2:]) for x in (k, v)))
        return reader.attend(layer, q, *(x.reshape(1, -1, *x.shape[-2:]) for x in (k, v)))

    return _run(decoder, tokens, positions, attend), growing.cache


# The items of a batch become one sequence, one after the other. No item sees another.


def _reader(decoder: Decoder, mask: Tensor, positions: Tensor) -> Reader:
    T, U = mask.shape[-2:]
    masks_BTU, positions_BU = mask.reshape(-1, T, U), positions.reshape(-1, U)
    return mask_reader(masks_BTU, positions_BU, decoder.config.sliding_windows, positions.device)


def _run(decoder: Decoder, tokens: Tensor, positions: Tensor, attend: Attend) -> Tensor:
    hidden = decoder.run(tokens.reshape(1, -1), positions.reshape(1, -1), attend)
    return hidden.view(*tokens.shape, -1)


def read_ends(decoder: Decoder, tree: Tree) -> Tensor:
    """The engine tree: hidden states (G, D) after the final norm, at the tree's ends. Each token of
    the tree is computed once, and in the top layer only the ends are."""
    device, windows = decoder.device, decoder.config.sliding_windows
    ends, tokens, positions = (x.to(device) for x in (tree.ends, tree.tokens, tree.positions))
    reader = tree_reader(tree, windows, device)
    return decoder.run(tokens[None], positions[None], reader.attend, rows=ends)[0]


def logits(decoder: Decoder, hidden: Tensor, columns: Tensor | None = None) -> Tensor:
    """`Decoder.logits`: (..., V), or (..., C) for the token ids `columns` (C,)."""
    head = decoder.model.embed_tokens if decoder.lm_head is None else decoder.lm_head
    if columns is None:
        return linear(hidden, head.weight)
    # Dot products, one by one: in a matrix product a column's bits depend on its place.
    rows = hidden.reshape(-1, hidden.shape[-1])
    wide = torch.promote_types(rows.dtype, torch.float32)
    parts = head.weight[columns].to(wide).split(BLOCK)
    products = []
    for x in rows.to(wide).split(BLOCK):
        products.append(torch.cat([(x[:, None] * part).sum(dim=-1) for part in parts], dim=-1))
    return torch.cat(products).to(rows.dtype).view(*hidden.shape[:-1], -1)
