"""A short convolution along each token's path: it reads the token, its parent, and so on.

Dimension legend: T tokens in one sequence; N taps; D channels; C rows of a piece. Next to read:
along.py.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from minise.lab.recurrent.paths import CHUNK


class Taps(Protocol):
    """Paths, or another that says of each token which rows of x it reads: taps(count) is (T, count)
    int64, the token's own first; as many as x has rows where there is none."""

    def taps(self, count: int) -> Tensor: ...


def convolve(x_TD: Tensor, weight_DN: Tensor, bias_D: Tensor | None, paths: Taps) -> Tensor:
    """A causal depthwise convolution: (T, D), in the dtype of x. As in torch's Conv1d the last
    weight is the token's own, the one before it the parent's. Taps are summed in float32 at least:
    in bfloat16 their sum loses what the next layer needs.

    In pieces of rows: 1,600 tokens of 6,144 channels at once take four times as long.
    """
    wide = torch.promote_types(x_TD.dtype, torch.float32)
    nothing_1D = x_TD.new_zeros(1, x_TD.shape[1])  # what there is before the first token
    padded = torch.cat([x_TD, nothing_1D])
    weight_ND = weight_DN.to(wide).flip(-1).T.contiguous()
    pieces = []
    for taps_CN in paths.taps(len(weight_ND)).split(CHUNK):
        out_CD = weight_ND[0] * padded[taps_CN[:, 0]]
        for back in range(1, len(weight_ND)):
            out_CD = out_CD + weight_ND[back] * padded[taps_CN[:, back]]
        if bias_D is not None:
            out_CD = out_CD + bias_D.to(wide)
        pieces.append(out_CD.to(x_TD.dtype))
    return torch.cat(pieces)
