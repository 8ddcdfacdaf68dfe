"""Exercise 3: the rotary position embedding (RoPE; Su et al. 2021, "RoFormer").

Each query and each key is cut into pairs of dimensions, and pair i is rotated by the angle
position * frequency i, as a hand of a clock. The product of a query and a key then depends only on
the difference of their positions.

Which dimensions are a pair? In the checkpoints of the transformers library dimension i is paired
with dimension i + h/2 (split halves), not with its neighbour.

Dimension legend: T tokens, H heads, h dimensions of a head (even).
"""

from __future__ import annotations

import torch
from torch import Tensor


def frequencies(head_dim: int, theta: float, dtype: torch.dtype) -> Tensor:
    """Radians per position of each pair, theta ** (-2 i / h) for pair i: (h / 2,) of `dtype`.

    >>> frequencies(4, 100.0, torch.float32).tolist()
    [1.0, 0.10000000149011612]
    """
    pair = torch.arange(head_dim // 2, dtype=dtype)
    return theta ** (-2 * pair / head_dim)


def rotate(x_THh: Tensor, positions_T: Tensor, theta: float) -> Tensor:
    """Queries or keys (T, H, h), rotated: the same shape and dtype. `positions_T`: (T,) int64, the
    position id of each token. In every head of a token the angles are the same.

    The angles, their cosines and sines and the products are computed in float32, whatever the
    dtype of x, and in float64 for a float64 x.

    A head with one pair turns by 1 radian per position, whatever theta is:

    >>> turned = rotate(torch.tensor([[[1.0, 0.0]]]), torch.tensor([1]), 10.0)
    >>> [round(value, 3) for value in turned.flatten().tolist()]  # the cosine and sine of 1
    [0.54, 0.841]
    """
    wide = torch.promote_types(x_THh.dtype, torch.float32)
    angles = positions_T[:, None, None] * frequencies(x_THh.shape[-1], theta, wide)
    cos, sin = angles.cos(), angles.sin()
    first, second = x_THh.to(wide).chunk(2, dim=-1)
    rotated = torch.cat([first * cos - second * sin, first * sin + second * cos], dim=-1)
    return rotated.to(x_THh.dtype)
