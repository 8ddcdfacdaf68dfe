"""The layers of a decoder whose kernels choose by the number of rows, replaced by ones that do not.

`refine` puts them in place when a checkpoint is loaded. They have the parameters of the layers they
replace, under the same names, and compute the same but for the order of summation.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minise.exact.calls import in_calls
from minise.exact.probe import Shape, elements_for, numbers_for
from minise.model import MLP, Angles, Decoder, Rotary

START = 4096  # what it costs to start a call of an activation, in elements
POSITIONS = 64  # of a call for angles
PIECE = 512  # rows of an MLP at once


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`F.linear` for x (..., in), in calls whose numbers of rows share their bits on this machine.
    Elsewhere than on a CPU nothing is known of them, and it is one call."""
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
    """The activation in calls of fixed numbers of elements. What does not fill a vector at the end
    of a call, or of a thread's part of it, is computed in another way, and has other bits."""

    def forward(self, x: Tensor) -> Tensor:
        if x.device.type != "cpu":
            return F.silu(x)
        numbers = elements_for(x.dtype, torch.get_num_threads())
        return in_calls(F.silu, x.reshape(-1), numbers, START).view(x.shape)


class FixedMLP(MLP):
    """The MLP, a piece of the tokens at a time: all of them would make its wide activations the
    largest tensors by far, and fresh memory of that size costs more than the products on it."""

    def __init__(self, mlp: MLP) -> None:
        nn.Module.__init__(self)
        self.gate_proj, self.up_proj, self.down_proj = mlp.gate_proj, mlp.up_proj, mlp.down_proj
        self.act_fn = FixedSiLU()

    def forward(self, x_BTD: Tensor) -> Tensor:
        rows = x_BTD.reshape(-1, x_BTD.shape[-1])
        if len(rows) <= PIECE:
            return super().forward(x_BTD)
        out = torch.cat([super(FixedMLP, self).forward(piece) for piece in rows.split(PIECE)])
        return out.view(x_BTD.shape)


class FixedRotary(Rotary):
    """Angles by blocks of positions, each in a call of its own: position 70 is always computed
    beside 64 to 127."""

    def forward(self, positions: Tensor, dtype: torch.dtype) -> Angles:
        blocks, own = (positions // POSITIONS).unique(return_inverse=True)
        within = torch.arange(POSITIONS, device=positions.device)
        tables = [super(FixedRotary, self).forward(b * POSITIONS + within, dtype) for b in blocks]
        cos, sin = (torch.stack(parts) for parts in zip(*tables, strict=True))
        place = own, positions % POSITIONS
        return cos[place], sin[place]


def refine(decoder: Decoder) -> Decoder:
    """The decoder with these layers in place of its own. Layers of another kind (in 4 bits, split
    over processes) are kept: they call `linear` themselves."""
    decoder.model.rotary_emb = FixedRotary(decoder.config)
    for parent in list(decoder.modules()):
        for name, layer in list(parent.named_children()):
            if type(layer) is nn.Linear:
                setattr(parent, name, FixedLinear(layer))
    blocks: Any = decoder.model.layers
    for block in blocks:
        block.mlp = FixedMLP(block.mlp)
    return decoder


def probe(decoder: Decoder, dtype: torch.dtype) -> None:
    """Find the numbers of rows for each shape of its layers, with the threads of now. It need not
    have its weights yet, beside which the probe's own would take memory. Not of the output matrix,
    by far the largest, from which an answer reads a few columns: that is probed when it is used."""
    for shape in shapes_of(decoder, dtype, output=False):
        numbers_for(shape)


def shapes_of(decoder: Decoder, dtype: torch.dtype, output: bool = True) -> list[Shape]:
    """The shapes of its linear layers and of its output matrix, each once."""
    sizes = [(x.in_features, x.out_features, x.bias is not None) for x in _linears(decoder)]
    if output:
        sizes.append((decoder.config.hidden_size, decoder.config.vocab_size, False))
    threads = torch.get_num_threads()
    return [Shape(*one, dtype, threads) for one in dict.fromkeys(sizes)]


def is_refined(decoder: Decoder) -> bool:
    """Whether `refine` has put its layers in place, on a CPU: then equal bits are promised."""
    return isinstance(decoder.model.rotary_emb, FixedRotary) and decoder.device.type == "cpu"


def _linears(decoder: Decoder) -> list[Any]:
    block: Any = decoder.model.layers[0]
    one, two = block.self_attn, block.mlp
    layers = (one.q_proj, one.k_proj, one.v_proj, one.o_proj)
    return [*layers, two.gate_proj, two.up_proj, two.down_proj]
