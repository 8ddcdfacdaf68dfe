"""Attention under an explicit mask (Section 4.1): what it is, and how it is computed.

Query i has a score for every token j that it may see. It reads the values of these tokens, weighted
by the softmax of the scores. A token that it may not see has no weight:

    score[i, j] = q[i] . k[j] / sqrt(h)    if mask[i, j], else -inf
    out[i]      = sum over j of softmax(score[i])[j] * v[j]

That is one call of torch's `scaled_dot_product_attention`. There are two savings. Groups do not see
each other, and most of the T x T scores are -inf: queries go in chunks, and a chunk reads only the
keys that at least one of its queries may see. And a long beginning is plain causal, which the
kernel knows without a mask: it is one chunk. The chunks are found from the mask, once for each
window and before the first layer. In definition.py: `read` and `within_window`.

Dimension legend:
B batch; T tokens that run; U tokens that can be read: those of a cache, if there is one, and the T
that run; R queries (T, or fewer in the top layer); C queries of a chunk; S keys that a chunk reads;
H query heads; K key/value heads; h head_dim. Next to read: model.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

CHUNK = 64  # queries; more of them after a long beginning
CHUNK_ON_GPU = 1024  # there a call costs more than the scores of pairs that the mask hides

# How queries read keys and values in layer `layer` (0, 1, ...): attend(layer, q, k, v) -> like q,
# for q (B, R, H, h), k and v (B, U, K, h), queries and keys already rotated. R is T, or in the top
# layer the number of `rows`.
Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]
Windows = Sequence[int | None]  # the sliding window of each layer, in positions; None: no window


@dataclass(frozen=True, eq=False)
class Chunk:
    """Some of the queries, and what they read. queries: which of the R queries. keys_S: which of
    the U tokens at least one of them may see. mask_BCS: True = this query may see this key; None:
    these are the first tokens, and each may see itself and all before it."""

    queries: slice
    keys_S: Tensor
    mask_BCS: Tensor | None

    def read(self, q_BRHh: Tensor, k_BUKh: Tensor, v_BUKh: Tensor) -> Tensor:
        """What these queries read: (B, C, H, h)."""
        q_BHCh = q_BRHh[:, self.queries].transpose(1, 2)
        k_BKSh = k_BUKh.index_select(1, self.keys_S).transpose(1, 2)
        v_BKSh = v_BUKh.index_select(1, self.keys_S).transpose(1, 2)
        if q_BHCh.is_cuda:
            # On a GPU no fast kernel takes a mask and fewer key/value heads in all dtypes: repeat
            # them. Query head i reads key/value head i // (H / K): [k0, k0, k1, k1], not
            # [k0, k1, k0, k1].
            shared = q_BHCh.shape[1] // k_BKSh.shape[1]
            k_BKSh = k_BKSh.repeat_interleave(shared, dim=1)
            v_BKSh = v_BKSh.repeat_interleave(shared, dim=1)
        mask_B1CS = None if self.mask_BCS is None else self.mask_BCS[:, None]
        out_BHCh = F.scaled_dot_product_attention(
            q_BHCh, k_BKSh, v_BKSh, mask_B1CS, is_causal=mask_B1CS is None, enable_gqa=True
        )
        return out_BHCh.transpose(1, 2)


def chunks_of(
    mask_BRU: Tensor,
    query_positions_BR: Tensor,
    key_positions_BU: Tensor,
    window: int | None,
) -> list[Chunk]:
    """The queries in chunks, under the mask (True = may attend) narrowed to a window."""
    R, U = mask_BRU.shape[1:]
    device = mask_BRU.device
    size = CHUNK_ON_GPU if device.type == "cuda" else CHUNK

    def mask_of(queries: slice) -> Tensor:
        positions_BC = query_positions_BR[:, queries]
        return within(mask_BRU[:, queries], positions_BC, key_positions_BU, window)

    causal_rows = 0  # so many first queries are plain causal
    chunks = []
    while causal_rows + size <= min(R, U):
        end = causal_rows + size
        rows_C = torch.arange(causal_rows, end, device=device)
        causal_CU = torch.arange(U, device=device) <= rows_C[:, None]
        if not (mask_of(slice(causal_rows, end)) == causal_CU).all():
            break
        causal_rows = end
    if causal_rows:
        keys_S = torch.arange(causal_rows, device=device)
        chunks.append(Chunk(slice(0, causal_rows), keys_S, mask_BCS=None))
    # A chunk copies its keys. The more of them stand before all other queries, the fewer chunks.
    size = max(size, max(causal_rows, U - R) // 8)
    for start in range(causal_rows, R, size):
        queries = slice(start, start + size)
        mask_BCU = mask_of(queries)
        is_read_U = mask_BCU.flatten(0, 1).view(torch.uint8).amax(dim=0)  # `any` is slow
        keys_S = is_read_U.nonzero().flatten()
        mask_BCS = mask_BCU.index_select(2, keys_S)
        chunks.append(Chunk(queries, keys_S, mask_BCS))
    return chunks


def within(
    mask_BRU: Tensor, positions_BR: Tensor, positions_BU: Tensor, window: int | None
) -> Tensor:
    """The mask narrowed to a window: position i may attend to j only if i < j + window. Positions
    count, not indices: in a packed sequence a late group's index is thousands past its position."""
    if window is None:
        return mask_BRU
    return mask_BRU & (positions_BR[..., :, None] < positions_BU[..., None, :] + window)


def by_mask(
    mask_BTU: Tensor,
    positions_BU: Tensor,
    windows: Windows,
    rows_R: Tensor | None,
    device: torch.device,
) -> Attend:
    """An `Attend` in which all layers read under one mask (B, T, U), True = may attend, narrowed to
    each layer's window. In the top layer only `rows_R` are queries, if given."""
    mask_BTU = mask_BTU.to(device)
    positions_BU = positions_BU.to(device)
    T = mask_BTU.shape[1]
    positions_BT = positions_BU[:, -T:]
    chunks_of_window = {}
    for window in set(windows):
        chunks_of_window[window] = chunks_of(mask_BTU, positions_BT, positions_BU, window)
    chunks_of_layer = [chunks_of_window[window] for window in windows]
    if rows_R is not None:
        rows_R = rows_R.to(device)
        mask_BRU = mask_BTU[:, rows_R]
        positions_BR = positions_BT[:, rows_R]
        chunks_of_layer[-1] = chunks_of(mask_BRU, positions_BR, positions_BU, windows[-1])

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        parts = [chunk.read(q, k, v) for chunk in chunks_of_layer[layer]]
        return torch.cat(parts, dim=1)

    return attend
