"""Watch a decoder at work: the residual stream after each layer, and the attention weights."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from minise.attention import Attend
from minise.lm import LocalModel
from minise.model import Decoder


@dataclass
class Recording:
    """What the last run inside the block computed, by layer 0, 1, ...

    residual[layer]: (B, T, D), the stream after the layer. final: (B, T, D), after the final norm.
    attention[layer]: (B, H, T, U) in the weights' dtype, how much each query reads each of the U
    tokens, those of a cache first; empty unless attention is recorded. In a run with `rows` the top
    layer and the final norm have these rows alone, as in all engines: the ends.
    """

    residual: dict[int, Tensor] = field(default_factory=dict)
    attention: dict[int, Tensor] = field(default_factory=dict)
    final: Tensor = field(init=False)


def own_decoder(lm: LocalModel) -> Decoder:
    """The decoder of model.py that a model runs on: no other can be recorded, copied or trained."""
    assert isinstance(lm.decoder, Decoder), f"{lm.name} has a decoder of another kind"
    return lm.decoder


@contextmanager
def record(decoder: Decoder, attention: bool = False) -> Iterator[Recording]:
    """Record every run of a decoder inside the block. The numbers do not change.

    Attention weights are what `attend` reads from one-hot values: see `weights_of`. So they are the
    weights of the function that really ran, whatever it is. The price is U / h more calls of it for
    each layer.
    """
    recording = Recording()
    real_reader, real_run = decoder.reader, decoder.run
    by_mask = False  # whether `forward` or `extend` has made the attend of the next run

    def watched(attend: Attend) -> Attend:
        def watch(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            recording.attention[layer] = weights_of(partial(attend, layer, q, k), v)
            return attend(layer, q, k, v)

        return watch if attention else attend

    def reader(*given: Any) -> Attend:
        nonlocal by_mask
        by_mask = True
        return watched(real_reader(*given))

    def run(tokens: Tensor, positions: Tensor, attend: Attend, *rest: Any, **named: Any) -> Tensor:
        nonlocal by_mask
        if not by_mask:  # an attend of the caller's own
            attend = watched(attend)
        by_mask = False
        recording.final = real_run(tokens, positions, attend, *rest, **named)
        return recording.final

    def keep(_: Any, inputs: Any, output: Tensor, layer: int) -> None:
        recording.residual[layer] = output

    hooks = []
    for index, layer in enumerate(decoder.model.layers):
        hooks.append(layer.register_forward_hook(partial(keep, layer=index)))
    # Of this object only.
    decoder.reader = reader  # type: ignore[assignment, method-assign]
    decoder.run = run  # type: ignore[method-assign]
    try:
        yield recording
    finally:
        del decoder.reader, decoder.run
        for hook in hooks:
            hook.remove()


def weights_of(read: Any, v_BUKh: Tensor) -> Tensor:
    """Attention weights (B, H, R, U), by `read(values)` (B, R, H, h), what R queries read.

    Where token j's value is the j-th unit vector, what a query reads is its row of weights. These
    vectors have U entries. They are cut into pieces as wide as a head, because a kernel may compute
    wider values in another way.
    """
    U, h = v_BUKh.shape[1], v_BUKh.shape[3]
    units_UU = F.pad(torch.eye(U, dtype=v_BUKh.dtype, device=v_BUKh.device), (0, -U % h))
    pieces = []
    for piece_Uh in units_UU.split(h, dim=1):
        values_BUKh = piece_Uh[None, :, None].expand(v_BUKh.shape)
        pieces.append(read(values_BUKh))
    weights_BRHU = torch.cat(pieces, dim=-1)[..., :U]
    return weights_BRHU.transpose(1, 2)
