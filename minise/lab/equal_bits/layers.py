"""Layers with the plain ones' parameters whose bits do not depend on the number of rows."""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minise.config import Config
from minise.lab.equal_bits.calls import in_calls
from minise.lab.equal_bits.probe import Shape, elements_for, numbers_for
from minise.model import MLP, Angles, Block, Layers
from minise.rope import Rotary, cos_sin

START = 4096  # the cost of starting a call of an activation, in elements
POSITIONS = 64  # in one call for angles


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`F.linear` for x (..., in), in calls whose numbers of rows give the same bits on this
    machine."""
    outputs, inputs = weight.shape
    shape = Shape(inputs, outputs, bias is not None, x.dtype, torch.get_num_threads())
    call = partial(F.linear, weight=weight, bias=bias)
    rows = x.reshape(-1, inputs)
    return in_calls(call, rows, numbers_for(shape)).view(*x.shape[:-1], outputs)


class FixedLinear(nn.Module):
    """A linear layer, plain or in 4 bits, in calls of fixed numbers of rows."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.layer = layer

    @property
    def weight(self) -> Tensor:
        return self.layer.weight

    @property
    def bias(self) -> Tensor | None:
        return self.layer.bias

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias)


def silu(x: Tensor) -> Tensor:
    """`F.silu` in calls of fixed numbers of elements. At the end of a call, elements that do not
    fill a vector of the processor are computed in another way."""
    numbers = elements_for(x.dtype, torch.get_num_threads())
    return in_calls(F.silu, x.reshape(-1), numbers, START).view(x.shape)


class FixedMLP(nn.Module):
    """The MLP `plain` of such layers."""

    def __init__(self, plain: MLP) -> None:
        super().__init__()
        self.gate_proj = FixedLinear(plain.gate_proj)
        self.up_proj = FixedLinear(plain.up_proj)
        self.down_proj = FixedLinear(plain.down_proj)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(silu(self.gate_proj(x)) * self.up_proj(x))


def angles_by_block(config: Config, positions: Tensor, dtype: torch.dtype) -> Angles:
    """`cos_sin` of a whole block in each call: position 70 is always computed with 64 to 127."""
    blocks, block_of = (positions // POSITIONS).unique(return_inverse=True)
    within = torch.arange(POSITIONS)
    cosines = []
    sines = []
    for block in blocks:
        cos, sin = cos_sin(config, (block * POSITIONS + within)[:, None], dtype)
        cosines.append(cos)
        sines.append(sin)
    place = positions % POSITIONS
    return torch.stack(cosines)[block_of, place], torch.stack(sines)[block_of, place]


class RotaryByBlock(Rotary):
    def forward(self, positions: Tensor, dtype: torch.dtype) -> Angles:
        return angles_by_block(self.config, positions[..., 0], dtype)


def fix_layers(model: Layers) -> None:
    """Put these layers in place of the plain ones, over the same parameters."""
    for block in model.layers:
        assert isinstance(block, Block)
        attention = block.self_attn
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            setattr(attention, name, FixedLinear(getattr(attention, name)))
        block.mlp = FixedMLP(block.mlp)  # type: ignore[assignment]
