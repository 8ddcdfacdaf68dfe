"""A prompt alone, as it is defined: with no layout, no engine, and attention in one softmax.

The engines share their decoder, and so would share its faults. This shares its layers alone.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function

from minise.layout import causal_mask
from minise.lm import LocalModel
from minise.prompts import Prompts
from minise.verify.comparison import Rows
from minise.verify.recording import own_decoder, record


def defined(lm: LocalModel, prompts: Prompts) -> Rows:
    """The rows of an only prompt. The labels' logits are read out by a product of their own."""
    decoder = own_decoder(lm)
    tokens = torch.tensor(prompts.prefix + prompts.branches[0])
    T = len(tokens)
    positions = torch.arange(T)
    distance = positions[:, None] - positions

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        window = decoder.config.sliding_windows[layer]
        mask = causal_mask(T)
        if window is not None:
            mask &= distance < window
        return softmax_attention(q, k, v, mask.to(q.device))

    with record(decoder) as seen:
        final = decoder.run(tokens[None], positions[None], attend)[0]
    *lower, top = [stream[0] for stream in seen.residual.values()]
    end = final[-1:]
    states = [*lower, top[-1:], end]
    head = decoder.model.embed_tokens if decoder.lm_head is None else decoder.lm_head
    label_weights = head.weight[prompts.label_ids[0]]
    labels = F.linear(end, label_weights).double().cpu()
    return Rows(states, labels, decoder.logits(end))


def softmax_attention(q_BTHh: Tensor, k_BTKh: Tensor, v_BTKh: Tensor, mask_TT: Tensor) -> Tensor:
    """softmax(q k^T / sqrt(h)) v, with masked scores at -inf: (B, T, H, h). Query head i reads
    key/value head i // (H / K). It is computed in float32 or wider."""
    if has_torch_function((q_BTHh,)):
        given = q_BTHh, k_BTKh, v_BTKh, mask_TT
        return handle_torch_function(softmax_attention, (q_BTHh,), *given)
    H, h = q_BTHh.shape[2:]
    shared = H // k_BTKh.shape[2]
    wide = torch.promote_types(q_BTHh.dtype, torch.float32)
    q_BTHh_wide = q_BTHh.to(wide)
    k_BTHh = k_BTKh.to(wide).repeat_interleave(shared, dim=2)
    v_BTHh = v_BTKh.to(wide).repeat_interleave(shared, dim=2)
    scores_BHTT = torch.einsum("bthd,buhd->bhtu", q_BTHh_wide, k_BTHh) / h**0.5
    scores_BHTT = scores_BHTT.masked_fill(~mask_TT, float("-inf"))
    weights_BHTT = scores_BHTT.softmax(dim=-1)
    out_BTHh = torch.einsum("bhtu,buhd->bthd", weights_BHTT, v_BTHh)
    return out_BTHh.to(q_BTHh.dtype)
