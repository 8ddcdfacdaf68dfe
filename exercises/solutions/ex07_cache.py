"""Exercise 7, one way to write it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

import minise

Cache = list[tuple[Tensor, Tensor]]  # keys (1, S, K, h) and values (1, S, K, h) of each layer


def extend(decoder: minise.Decoder, tokens: Tensor, cache: Cache) -> tuple[Tensor, Cache]:
    S, T = cache[0][0].shape[1] if cache else 0, tokens.shape[1]
    mask_TU = torch.ones(T, S + T, dtype=torch.bool).tril(diagonal=S)
    longer: Cache = []

    def attend(layer: int, q_BTHh: Tensor, k_BTKh: Tensor, v_BTKh: Tensor) -> Tensor:
        k_BUKh, v_BUKh = k_BTKh, v_BTKh
        if cache:
            k_BUKh = torch.cat([cache[layer][0], k_BTKh], dim=1)
            v_BUKh = torch.cat([cache[layer][1], v_BTKh], dim=1)
        longer.append((k_BUKh, v_BUKh))
        q_BHTh, k_BKUh, v_BKUh = (x.transpose(1, 2) for x in (q_BTHh, k_BUKh, v_BUKh))
        out_BHTh = scaled_dot_product_attention(q_BHTh, k_BKUh, v_BKUh, mask_TU, enable_gqa=True)
        return out_BHTh.transpose(1, 2)

    hidden = decoder.run(tokens, torch.arange(S, S + T)[None], attend)
    return hidden, longer


def cached_logits(
    decoder: minise.Decoder, prefix: Sequence[int], branches: Sequence[Sequence[int]]
) -> Tensor:
    _, shared = extend(decoder, torch.tensor([prefix]), [])
    ends = []
    for branch in branches:
        hidden, _ = extend(decoder, torch.tensor([branch]), shared)
        ends.append(hidden[0, -1])
    return decoder.logits(torch.stack(ends))
