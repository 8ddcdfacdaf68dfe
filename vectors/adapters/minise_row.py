"""minise's decoder: the whole row in one pass. EQUAL_BITS=1: in equal bits. DEVICE=cuda: there."""

import functools
import os

import numpy as np
import torch

import minise


@functools.cache
def load(folder, dtype):
    device, equal_bits = os.environ.get("DEVICE", "cpu"), "EQUAL_BITS" in os.environ
    return minise.load(folder, dtype=dtype, device=device, equal_bits=equal_bits)


def logits_of(folder, dtype, tokens, positions, mask):
    decoder = load(folder, dtype).decoder
    hidden = decoder(*(torch.tensor(x) for x in (tokens, positions, mask)))
    return decoder.logits(hidden)


@torch.no_grad()
def logits(folder, dtype, tokens, positions, mask):
    return logits_of(folder, dtype, tokens, positions, mask).double().cpu().numpy()


def loss_of(folder, dtype, tokens, positions, mask, edges):
    """The mean over the edges (row, row of the token that it predicts)."""
    found = logits_of(folder, dtype, tokens, positions, mask)
    logprobs = found.to(torch.promote_types(found.dtype, torch.float32)).log_softmax(-1)
    return -logprobs[edges[:, 0], tokens[edges[:, 1]]].mean()


@torch.no_grad()
def loss(folder, dtype, tokens, positions, mask, edges):
    return loss_of(folder, dtype, tokens, positions, mask, edges).item()


def gradients(folder, dtype, tokens, positions, mask, edges):
    decoder = load(folder, dtype).decoder.requires_grad_()
    weights = dict(decoder.named_parameters())
    found = torch.autograd.grad(
        loss_of(folder, dtype, tokens, positions, mask, edges), list(weights.values())
    )
    return {n: np.array(x.double().cpu()) for n, x in zip(weights, found, strict=True)}


if "EQUAL_BITS" in os.environ:
    del gradients  # equal bits have none
