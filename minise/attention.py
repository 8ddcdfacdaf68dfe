"""Attention under an explicit mask (Section 4.1): the definition.

`masked_attention` is what every engine computes. equal_bits/attention.py computes the same so that
bits are equal; a first reading can leave it out.

Dimension legend: T tokens that are run; U >= T tokens that can be read, of which the last T are
those that are run; H query heads; K key/value heads; h head_dim. Next to read: cache.py, model.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

# How queries read keys and values in layer `layer` (0, 1, ...): attend(layer, q, k, v) -> like q,
# for q (..., R, H, h), k and v (..., T, K, h), queries and keys already rotated. R is T, or in the
# top layer the number of `rows`. An `attend` with a cache adds the cached keys and values itself.
# The last dimension of the values need not be h: verify/recording.py makes it wider.
Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]
Windows = Sequence[int | None]  # the sliding window of each layer, in positions; None: no window


def masked_attention(q_THh: Tensor, k_UKh: Tensor, v_UKh: Tensor, mask_TU: Tensor) -> Tensor:
    """softmax(q k^T / sqrt(h)) v, with -inf for masked scores: (..., T, H, h) in the dtype of q.

    Leading batch dimensions are the same in all. It is computed in float32 or wider.
    """
    # Query head i reads key/value head i // (H / K): keys [k0, k0, k1, k1], not [k0, k1, k0, k1].
    shared = q_THh.shape[-2] // k_UKh.shape[-2]
    wide = torch.promote_types(q_THh.dtype, torch.float32)
    q, k, v = q_THh.to(wide), *(x.to(wide).repeat_interleave(shared, -2) for x in (k_UKh, v_UKh))
    scores_HTU = torch.einsum("...thd,...uhd->...htu", q, k) / math.sqrt(q.shape[-1])
    weights_HTU = scores_HTU.masked_fill(~mask_TU[..., None, :, :], -math.inf).softmax(dim=-1)
    return torch.einsum("...htu,...uhd->...thd", weights_HTU, v).to(q_THh.dtype)


def by_mask(mask_TU: Tensor, positions_U: Tensor, windows: Windows) -> Attend:
    """An `Attend` in which all layers read under one mask (..., T, U), True = may attend, narrowed
    to each layer's window."""

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        positions_T = positions_U[..., -mask_TU.shape[-2] :]
        return masked_attention(q, k, v, within(mask_TU, positions_T, positions_U, windows[layer]))

    return attend


def within(mask_TU: Tensor, positions_T: Tensor, positions_U: Tensor, window: int | None) -> Tensor:
    """The mask narrowed to a window: position i may attend to j only if i - j < window. Positions
    count, not indices: in a packed sequence a late group's index is thousands past its position."""
    if window is None:
        return mask_TU
    return mask_TU & (positions_T[..., :, None] < positions_U[..., None, :] + window)
