"""minise/definition.py: the decoder in its plainest form."""

import torch

from minise.definition import Decoder


def logits(weights, config, tokens, positions, mask, dtype):
    held = {name: torch.tensor(x).to(getattr(torch, dtype)) for name, x in weights.items()}
    row = (torch.tensor(x) for x in (tokens, positions, mask))
    return Decoder(config, held).logits(*row).double().numpy()
