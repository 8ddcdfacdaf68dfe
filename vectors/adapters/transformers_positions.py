"""transformers, told nothing but tokens and positions: what does it make of a packed row?"""

import torch
from transformers_mask import DEVICE, load


def run(folder, dtype, tokens, positions, **more):
    ids, where = (torch.tensor(x, device=DEVICE)[None] for x in (tokens, positions))
    more = {name: torch.tensor(x, device=DEVICE)[None] for name, x in more.items()}
    return load(folder, dtype)(input_ids=ids, position_ids=where, use_cache=False, **more)


@torch.no_grad()
def logits(folder, dtype, tokens, positions):
    return run(folder, dtype, tokens, positions).logits[0].double().cpu().numpy()


@torch.no_grad()
def loss(folder, dtype, tokens, positions, labels):
    return run(folder, dtype, tokens, positions, labels=labels).loss.item()


def gradients(folder, dtype, tokens, positions, labels):
    model = load(folder, dtype)
    model.zero_grad()
    run(folder, dtype, tokens, positions, labels=labels).loss.backward()
    return {n: x.grad.double().cpu().numpy() for n, x in model.named_parameters()}
