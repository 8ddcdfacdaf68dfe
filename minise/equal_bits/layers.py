"""Layers with the plain ones' parameters whose bits do not depend on the number of rows."""

from __future__ import annotations

import copy
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minise.equal_bits.calls import in_calls
from minise.equal_bits.probe import Shape, elements_for, numbers_for
from minise.model import MLP, Angles, Block, Decoder, Rotary

START = 4096  # the cost of starting a call of an activation, in elements
POSITIONS = 64  # in one call for angles
PIECE, PACKED_PIECE = 512, 2048  # rows that an MLP computes at once, also with packed weights


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`F.linear` for x (..., in), in calls whose numbers of rows give the same bits on this
    machine; elsewhere than on a CPU, where nothing is known of them, in one call."""
    if x.device.type != "cpu":
        return F.linear(x, weight, bias)
    outputs, inputs = weight.shape
    shape = Shape(inputs, outputs, bias is not None, x.dtype, torch.get_num_threads())
    call = partial(F.linear, weight=weight, bias=bias)
    return in_calls(call, x.reshape(-1, inputs), numbers_for(shape)).view(*x.shape[:-1], outputs)


class FixedLinear(nn.Module):
    """A linear layer, plain or in 4 bits, in calls of fixed numbers of rows."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.layer.weight, self.layer.bias)


class FixedSiLU(nn.SiLU):
    """In calls of fixed numbers of elements: at an end those that fill no vector differ."""

    def forward(self, x: Tensor) -> Tensor:
        numbers = elements_for(x.dtype, torch.get_num_threads())
        return in_calls(F.silu, x.reshape(-1), numbers, START).view(x.shape)


class FixedMLP(MLP):
    """For PIECE tokens at a time: wider activations take longer to allocate than to compute."""

    def __init__(self, mlp: MLP) -> None:
        nn.Module.__init__(self)
        self.gate_proj, self.up_proj, self.down_proj = mlp.gate_proj, mlp.up_proj, mlp.down_proj
        self.act_fn = FixedSiLU()

    def forward(self, x_BTD: Tensor) -> Tensor:
        rows = x_BTD.reshape(-1, x_BTD.shape[-1])
        # A weight in 4 bits is unpacked for each piece.
        size = PIECE if type(self.gate_proj.layer) is nn.Linear else PACKED_PIECE
        if len(rows) <= size:
            return super().forward(x_BTD)
        out = torch.cat([super(FixedMLP, self).forward(piece) for piece in rows.split(size)])
        return out.view(x_BTD.shape)


class FixedRotary(Rotary):
    """The angles of a whole block in each call: position 70 is always computed with 64 to 127."""

    def forward(self, positions: Tensor, dtype: torch.dtype) -> Angles:
        blocks, block_of = (positions // POSITIONS).unique(return_inverse=True)
        within = torch.arange(POSITIONS, device=positions.device)
        tables = [super(FixedRotary, self).forward(b * POSITIONS + within, dtype) for b in blocks]
        cos, sin = (torch.stack(parts) for parts in zip(*tables, strict=True))
        place = block_of, positions % POSITIONS
        return cos[place], sin[place]


def refine(decoder: Decoder) -> Decoder:
    """A second decoder with these layers over the parameters of the first. No number is copied.
    On a GPU the first itself: nothing is known of its kernels, so these layers promise nothing."""
    if decoder.model.embed_tokens.weight.is_cuda:
        return decoder
    shared = {id(x): x for x in (*decoder.parameters(), *decoder.buffers())}
    twin = copy.deepcopy(decoder, shared)
    twin.model.rotary_emb = FixedRotary(decoder.config)
    for block in twin.model.layers:
        assert isinstance(block, Block)
        for part in (block.self_attn, block.mlp):
            projections = {n: x for n, x in part.named_children() if n.endswith("_proj")}
            for name, layer in projections.items():
                setattr(part, name, FixedLinear(layer))  # type: ignore[arg-type]
        block.mlp = FixedMLP(block.mlp)
    return twin
