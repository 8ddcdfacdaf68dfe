"""minise in two passes: first `cached` tokens, then the others, which read them from a cache."""

import torch
from minise_row import MODEL_TYPES, load  # noqa: F401

from minise.lab.writing.cache import extend


@torch.no_grad()
def logits(folder, dtype, tokens, positions, mask, cached):
    decoder = load(folder, dtype).decoder
    tokens, positions, mask = (torch.tensor(x) for x in (tokens, positions, mask))
    S = int(cached)
    first, cache = extend(decoder, tokens[:S], positions[:S], mask[:S, :S])
    rest, _ = extend(decoder, tokens[S:], positions[S:], mask[S:], cache)
    return decoder.logits(torch.cat([first, rest])).double().cpu().numpy()
