"""Layers whose bits do not depend on the number of rows, in place of a decoder's plain layers.

`refine` puts them in place when a checkpoint is loaded. They have the parameters of the layers they
replace, under the same names, and compute the same except for the order of summation.
"""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minise.exact.calls import in_calls
from minise.exact.probe import Shape, elements_for, numbers_for
from minise.model import MLP, Angles, Block, Decoder, Rotary

START = 4096  # the cost of starting a call of an activation, in elements
POSITIONS = 64  # in one call for angles
PIECE, PACKED_PIECE = 512, 2048  # rows that an MLP computes at once, also with packed weights


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`F.linear` for x (..., in), in calls whose numbers of rows give the same bits on this
    machine. On other devices than a CPU nothing is known about them, and it is one call."""
    if x.device.type != "cpu":
        return F.linear(x, weight, bias)
    outputs, inputs = weight.shape
    shape = Shape(inputs, outputs, bias is not None, x.dtype, torch.get_num_threads())
    call = partial(F.linear, weight=weight, bias=bias)
    return in_calls(call, x.reshape(-1, inputs), numbers_for(shape)).view(*x.shape[:-1], outputs)


class FixedLinear(nn.Linear):
    """A linear layer in calls of fixed numbers of rows."""

    def __init__(self, layer: nn.Linear) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features = layer.in_features, layer.out_features
        self.weight, self.bias = layer.weight, layer.bias

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias)


class FixedSiLU(nn.SiLU):
    """The activation in calls of fixed numbers of elements. At the end of a call, or of a thread's
    part of it, elements that fill no vector are computed in another way and get other bits."""

    def forward(self, x: Tensor) -> Tensor:
        if x.device.type != "cpu":
            return F.silu(x)
        numbers = elements_for(x.dtype, torch.get_num_threads())
        return in_calls(F.silu, x.reshape(-1), numbers, START).view(x.shape)


class FixedMLP(MLP):
    """The MLP, for PIECE tokens at a time. For all tokens at once its wide activations would be by
    far the largest tensors, and allocating them would take longer than computing with them."""

    def __init__(self, mlp: MLP) -> None:
        nn.Module.__init__(self)
        self.gate_proj, self.up_proj, self.down_proj = mlp.gate_proj, mlp.up_proj, mlp.down_proj
        self.act_fn = FixedSiLU()

    def forward(self, x_BTD: Tensor) -> Tensor:
        rows = x_BTD.reshape(-1, x_BTD.shape[-1])
        # A packed weight is unpacked for each piece.
        size = PIECE if isinstance(self.gate_proj, nn.Linear) else PACKED_PIECE
        if len(rows) <= size:
            return super().forward(x_BTD)
        out = torch.cat([super(FixedMLP, self).forward(piece) for piece in rows.split(size)])
        return out.view(x_BTD.shape)


class FixedRotary(Rotary):
    """The angles of a whole block of positions in each call: position 70 is always computed
    together with 64 to 127."""

    def forward(self, positions: Tensor, dtype: torch.dtype) -> Angles:
        blocks, block_of = (positions // POSITIONS).unique(return_inverse=True)
        within = torch.arange(POSITIONS, device=positions.device)
        tables = [super(FixedRotary, self).forward(b * POSITIONS + within, dtype) for b in blocks]
        cos, sin = (torch.stack(parts) for parts in zip(*tables, strict=True))
        place = block_of, positions % POSITIONS
        return cos[place], sin[place]


def refine(decoder: Decoder) -> Decoder:
    """Replace the decoder's layers by these, in place, and return it. Layers of another kind (in 4
    bits, split over processes) stay: they call `linear` themselves."""
    decoder.model.rotary_emb = FixedRotary(decoder.config)
    for parent in list(decoder.modules()):
        for name, layer in list(parent.named_children()):
            if type(layer) is nn.Linear:
                setattr(parent, name, FixedLinear(layer))
    for block in decoder.model.layers:
        assert isinstance(block, Block)
        block.mlp = FixedMLP(block.mlp)
    return decoder


def probe(decoder: Decoder, dtype: torch.dtype, device: torch.device) -> None:
    """Find the numbers of rows for each shape of the decoder's layers, with the present number of
    threads. The decoder need not have its weights yet: the probe's own weights would take memory
    beside them. The output matrix, by far the largest, is probed when it is first used, because an
    answer reads only a few of its columns."""
    if device.type != "cpu":  # elsewhere a layer is one call
        return
    for shape in shapes_of(decoder, dtype, output=False):
        numbers_for(shape)


def shapes_of(decoder: Decoder, dtype: torch.dtype, output: bool = True) -> list[Shape]:
    """The shapes of the decoder's linear layers and, with `output`, of its output matrix, each
    once."""
    sizes = [(x.in_features, x.out_features, x.bias is not None) for x in _linears(decoder)]
    if output:
        sizes.append((decoder.config.hidden_size, decoder.config.vocab_size, False))
    threads = torch.get_num_threads()
    return [Shape(*size, dtype, threads) for size in dict.fromkeys(sizes)]


def is_refined(decoder: Decoder) -> bool:
    """Whether `refine` has replaced its layers, on a CPU: only then are equal bits promised."""
    return isinstance(decoder.model.rotary_emb, FixedRotary) and decoder.device.type == "cpu"


def _linears(decoder: Decoder) -> list[nn.Linear]:
    block = decoder.model.layers[0]
    assert isinstance(block, Block)
    attention, mlp = block.self_attn, block.mlp
    projections = [attention.q_proj, attention.k_proj, attention.v_proj, attention.o_proj]
    return [*projections, mlp.gate_proj, mlp.up_proj, mlp.down_proj]
