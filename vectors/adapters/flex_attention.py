"""FlexAttention in minise's decoder, by a mask_mod. DEVICE=cuda: there, and compiled."""

import os

import torch
from minise_row import load
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

DEVICE = os.environ.get("DEVICE", "cpu")
flex = torch.compile(flex_attention) if DEVICE != "cpu" else flex_attention


@torch.no_grad()
def logits(folder, dtype, tokens, positions, mask_in_window):
    decoder, T = load(folder, dtype).decoder, len(tokens)
    blocks = []
    for sees in torch.tensor(mask_in_window, device=DEVICE):

        def mask_mod(b, h, q, k, sees=sees):
            return sees[q, k]

        blocks.append(create_block_mask(mask_mod, None, None, T, T, device=DEVICE))

    def attend(layer, q, k, v):  # (B, T, H, h)
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        return flex(q, k, v, block_mask=blocks[layer], enable_gqa=True).transpose(1, 2)

    hidden = decoder.run(torch.tensor(tokens)[None], torch.tensor(positions)[None], attend)
    return decoder.logits(hidden)[0].double().cpu().numpy()
