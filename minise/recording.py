"""Watch a decoder at work: the residual stream after each layer, and the attention weights."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from minise.model import Decoder


@dataclass
class Recording:
    """What the last run inside the block computed, by layer 0, 1, ...

    residual[layer]: (..., T, D), the stream after the layer. attention[layer]: (..., H, Q, T) in
    the weights' dtype, how much each query reads each token, if it was asked for. In the tree
    engine's top layer only the ends are there.
    """

    residual: dict[int, Tensor] = field(default_factory=dict)
    attention: dict[int, Tensor] = field(default_factory=dict)


@contextmanager
def record(decoder: Decoder, attention: bool = False) -> Iterator[Recording]:
    """Record every run of the decoder inside the block, by any engine. The numbers do not change.

    Attention weights are what `attend` reads from one-hot values: where token j's value is the j-th
    unit vector, what a query reads is its row of weights. So they are those of the very function
    that ran, whatever it is, at the price of one more call of it for each layer.
    """
    seen = Recording()

    def keep_weights(layer: int, given: tuple[Any, ...]) -> tuple[Any, ...]:
        x, angles, read, rows = given

        def recorded(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            T = k.shape[-3]
            units = torch.eye(T, dtype=v.dtype, device=v.device)[:, None]
            seen.attention[layer] = read(q, k, units.expand(*v.shape[:-1], T)).transpose(-3, -2)
            return read(q, k, v)

        return x, angles, recorded, rows

    hooks = []
    for index, layer in enumerate(decoder.model.layers):
        hooks.append(
            layer.register_forward_hook(
                lambda _, given, output, index=index: seen.residual.update({index: output})
            )
        )
        if attention:
            hooks.append(
                layer.get_submodule("self_attn").register_forward_pre_hook(
                    lambda _, given, index=index: keep_weights(index, given)
                )
            )
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()
