"""Watch a decoder at work: the residual stream after each layer, and the attention weights."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from minise.attention import Attend
from minise.model import Decoder


@dataclass
class Recording:
    """What the last run inside the block computed, by layer 0, 1, ...

    residual[layer]: (..., T, D), the stream after the layer. final: (..., T, D), after the final
    norm. attention[layer]: (..., H, Q, T) in the weights' dtype, how much each query reads each
    token; empty unless attention is recorded. The tree engine's top layer has the ends only.
    """

    residual: dict[int, Tensor] = field(default_factory=dict)
    attention: dict[int, Tensor] = field(default_factory=dict)
    final: Tensor = field(init=False)


@contextmanager
def record(decoder: Decoder, attention: bool = False) -> Iterator[Recording]:
    """Record every run of a decoder inside the block. The numbers do not change. The engine plain
    runs `lm.decoder`; separate, dense and tree run `lm.refined`.

    Attention weights are what `attend` reads from one-hot values: where token j's value is the j-th
    unit vector, what a query reads is its row of weights. So they are the weights of the function
    that really ran, whatever it is. The price is one more call of it for each layer.
    """
    recording, real = Recording(), decoder.run

    def run(
        tokens: Tensor, positions: Tensor, attend: Attend, rows: Tensor | None = None
    ) -> Tensor:
        def recorded(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            T = k.shape[-3]
            units = torch.eye(T, dtype=v.dtype, device=v.device)[:, None].expand(*v.shape[:-1], T)
            recording.attention[layer] = attend(layer, q, k, units).transpose(-3, -2)
            return attend(layer, q, k, v)

        recording.final = real(tokens, positions, recorded if attention else attend, rows)
        return recording.final

    def keep(_: Any, inputs: Any, output: Tensor, layer: int) -> None:
        recording.residual[layer] = output

    layers = enumerate(decoder.model.layers)
    hooks = [layer.register_forward_hook(partial(keep, layer=i)) for i, layer in layers]
    decoder.run = run  # type: ignore[method-assign]  # for this object only
    try:
        yield recording
    finally:
        del decoder.run
        for hook in hooks:
            hook.remove()
