"""Exercise 3, one way to write it."""

from __future__ import annotations

import torch
from torch import Tensor


def frequencies(head_dim: int, theta: float, dtype: torch.dtype) -> Tensor:
    pair = torch.arange(head_dim // 2, dtype=dtype)
    return theta ** (-2 * pair / head_dim)


def rotate(x_THh: Tensor, positions_T: Tensor, theta: float) -> Tensor:
    wide = torch.promote_types(x_THh.dtype, torch.float32)
    angles = positions_T[:, None, None] * frequencies(x_THh.shape[-1], theta, wide)
    cos, sin = angles.cos(), angles.sin()
    first, second = x_THh.to(wide).chunk(2, dim=-1)
    rotated = torch.cat([first * cos - second * sin, first * sin + second * cos], dim=-1)
    return rotated.to(x_THh.dtype)
