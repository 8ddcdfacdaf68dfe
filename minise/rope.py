"""Rotary position embedding by explicit position ids.

Each pair of a head's dimensions is rotated by the angle position * frequency. So the product of a
query and a key depends only on the distance of their positions. In the packed sequence a group's
tokens have the positions that they would have right after the question (Section 4.2, the position
list, Eq. 5), so the groups between the question and this group make no difference.

In definition.py: `rotate` and `frequencies`.

Dimension legend: B batch, T tokens, H heads, h head_dim. Next to read: attention.py.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from minise.config import Config


def inverse_frequencies(config: Config, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Radians per position of each pair, fastest first: (head_dim / 2,) of `dtype`.

    Computed when needed, never stored: a stored table would be cast along with the weights, and in
    bfloat16 a frequency has three digits, which position 1,000 multiplies.
    """
    pair = torch.arange(config.head_dim // 2, dtype=dtype, device=device)
    frequencies = config.rope_theta ** (-2.0 * pair / config.head_dim)
    scaling = config.rope_scaling
    if scaling.rope_type == "linear":
        frequencies = frequencies / scaling.factor
    elif scaling.rope_type == "llama3":
        # What counts is a pair's number of full turns within the original context. With fewer than
        # low_freq_factor a pair is slowed by `factor`. With more than high_freq_factor it is kept.
        # Between the two there is a linear ramp.
        turns = scaling.original_max_position_embeddings * frequencies / (2 * math.pi)
        ramp = (turns - scaling.low_freq_factor) / (
            scaling.high_freq_factor - scaling.low_freq_factor
        )
        keep = ramp.clamp(0.0, 1.0)
        frequencies = frequencies * (keep + (1.0 - keep) / scaling.factor)
    return frequencies


def cos_sin(config: Config, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Cosines and sines of the angles at int64 `positions` (...): two tensors (..., h).

    `dtype` is the model's. The angles are at least float32, and float64 in a float64 model.
    """
    dtype = torch.promote_types(dtype, torch.float32)
    angle = positions[..., None] * inverse_frequencies(config, dtype, positions.device)
    # [a, a], not [a0, a0, a1, a1, ...]: these checkpoints pair dimension i with i + h/2 (split
    # halves). Meta's original LLaMA files pair 2i with 2i + 1; converted weights are permuted.
    angle = torch.cat([angle, angle], dim=-1)
    return angle.cos(), angle.sin()


class Rotary(nn.Module):
    """The angles of a decoder's positions, the same in all layers."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config

    def forward(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        return cos_sin(self.config, positions, dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the pairs of `x` (B, T, H, h) by cos and sin (B, T, 1, h). The dtype is kept."""
    wide = x.to(cos.dtype)  # once: products of two dtypes are slow
    first, second = wide.chunk(2, dim=-1)
    return (wide * cos + torch.cat([-second, first], dim=-1) * sin).to(x.dtype)
