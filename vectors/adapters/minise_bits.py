"""minise in equal bits. It has no gradients."""

import torch
from minise_row import load, run


@torch.no_grad()
def logits(folder, dtype, tokens, positions, mask):
    decoder = load(folder, dtype, equal_bits=True).decoder
    return run(decoder, tokens, positions, mask).double().cpu().numpy()
