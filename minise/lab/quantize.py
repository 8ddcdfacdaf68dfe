"""4-bit weights in the format nf4 of bitsandbytes: pack a matrix, unpack it, compute with it.

A matrix is read row by row and cut into blocks of 64 values; a block may run over the end of a row.
A block is stored as its largest absolute value (its scale), and each of its values as the index of
the nearest of 16 levels: value = level[code] * scale.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minise.model import MLP

VALUES = 64  # in a block
# Quantiles of a normal distribution, ascending.
LEVELS = torch.tensor(
    [
        -1.0,
        -0.6961928009986877,
        -0.5250730514526367,
        -0.39491748809814453,
        -0.28444138169288635,
        -0.18477343022823334,
        -0.09105003625154495,
        0.0,
        0.07958029955625534,
        0.16093020141124725,
        0.24611230194568634,
        0.33791524171829224,
        0.44070982933044434,
        0.5626170039176941,
        0.7229568362236023,
        1.0,
    ]
)


@dataclass(frozen=True, eq=False)
class Blocks:
    """A matrix in blocks. codes: uint8 (values / 2,), two in a byte, the first in its high half.
    scales: float32 (blocks,)."""

    codes: Tensor
    scales: Tensor


class Packed(nn.Module):
    """A linear layer with the shape and bias of `layer` and its weight in 4 bits. The unpacked
    weight is rounded to `dtype`."""

    def __init__(self, blocks: Blocks, layer: nn.Linear, dtype: torch.dtype) -> None:
        super().__init__()
        self.out_features = layer.out_features
        self.in_features = layer.in_features
        self.bias = layer.bias
        self.dtype = dtype
        # Floats are held as integers, so that .to(dtype) changes `like` alone.
        levels = LEVELS.to(blocks.codes.device)
        self.register_buffer("codes", blocks.codes)
        self.register_buffer("scales", blocks.scales.view(torch.int32))
        self.register_buffer("levels", levels.view(torch.int32), persistent=False)
        self.register_buffer("like", torch.empty(0, dtype=dtype), persistent=False)

    @property
    def weight(self) -> Tensor:
        """The matrix (out, in), unpacked anew: products in float32, then rounded."""
        codes = self.get_buffer("codes")
        scales = self.get_buffer("scales").view(torch.float32)
        levels = self.get_buffer("levels").view(torch.float32)
        # The two values of each byte, looked up as one number of 8 bytes: twice as fast.
        pairs = torch.stack([levels.repeat_interleave(16), levels.repeat(16)], dim=1)
        pair_of_byte = pairs.view(torch.int64)[:, 0]
        values = pair_of_byte.index_select(0, codes.int()).view(torch.float32)
        values.view(-1, VALUES).mul_(scales[:, None])
        matrix = values[: self.out_features * self.in_features].view(self.out_features, -1)
        return matrix.to(self.dtype).to(self.get_buffer("like").dtype)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)


class WholeMLP(nn.Module):
    """The MLP `plain`, which takes all tokens at once: its weights are unpacked for each call."""

    def __init__(self, plain: MLP) -> None:
        super().__init__()
        self.gate_proj = plain.gate_proj
        self.up_proj = plain.up_proj
        self.down_proj = plain.down_proj

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


def count_weights(decoder: Any) -> int:
    """How many numbers the weights of any decoder are, those in 4 bits too."""
    count = sum(parameter.numel() for parameter in decoder.parameters())
    if isinstance(decoder, nn.Module):  # one of another library need not be
        for layer in decoder.modules():
            if isinstance(layer, Packed):
                count += layer.out_features * layer.in_features
    return count


def pack_layers(layers: nn.Module, dtype: torch.dtype, device: torch.device) -> None:
    """Put `Packed` in place of all linear layers, and `WholeMLP` in place of all MLPs."""
    for name, layer in list(layers.named_modules()):
        if isinstance(layer, MLP):
            layers.set_submodule(name, WholeMLP(layer))
    for name, layer in list(layers.named_modules()):
        if isinstance(layer, nn.Linear):
            blocks = pack_weight(layer.weight.to(device))
            layers.set_submodule(name, Packed(blocks, layer, dtype))


def pack_weight(weight: Tensor) -> Blocks:
    """A matrix of finite numbers in blocks. Each value, divided by its block's scale, becomes the
    nearest level, the lower one on a tie."""
    values = weight.reshape(-1).float()
    blocks = F.pad(values, (0, -len(values) % VALUES)).view(-1, VALUES)
    scales = blocks.abs().amax(dim=1)
    scaled = blocks * (1 / scales.clamp(min=1e-38))[:, None]
    levels = LEVELS.to(weight.device)
    edges = (levels[1:] + levels[:-1]) / 2
    nearest = torch.bucketize(scaled, edges, out_int32=True).byte()
    high, low = nearest.view(-1, 2).unbind(dim=1)
    return Blocks(high << 4 | low, scales)
