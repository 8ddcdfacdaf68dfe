"""minise's decoder: the whole row in one pass. DEVICE=cuda: there."""

import functools
import os

import torch

import minise

MODEL_TYPES = ("llama", "mistral", "qwen2", "qwen3", "qwen3_5_text")


@functools.cache
def load(folder, dtype, equal_bits=False):
    device = os.environ.get("DEVICE", "cpu")
    return minise.load(folder, dtype=dtype, device=device, equal_bits=equal_bits)


def run(decoder, tokens, positions, mask):
    hidden = decoder(*(torch.tensor(x) for x in (tokens, positions, mask)))
    return decoder.logits(hidden)


@torch.no_grad()
def logits(folder, dtype, tokens, positions, mask):
    return run(load(folder, dtype).decoder, tokens, positions, mask).double().cpu().numpy()


def loss_of(folder, dtype, tokens, positions, mask, edges):
    """The mean over the edges (row, row of the token that it predicts)."""
    found = run(load(folder, dtype).decoder, tokens, positions, mask)
    logprobs = found.to(torch.promote_types(found.dtype, torch.float32)).log_softmax(-1)
    return -logprobs[edges[:, 0], tokens[edges[:, 1]]].mean()


@torch.no_grad()
def loss(folder, dtype, tokens, positions, mask, edges):
    return loss_of(folder, dtype, tokens, positions, mask, edges).item()


def gradients(folder, dtype, tokens, positions, mask, edges):
    weights = dict(load(folder, dtype).decoder.requires_grad_().named_parameters())
    result = loss_of(folder, dtype, tokens, positions, mask, edges)
    found = torch.autograd.grad(result, list(weights.values()))
    return {n: x.double().cpu().numpy() for n, x in zip(weights, found, strict=True)}
