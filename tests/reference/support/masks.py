"""Masks of every kind: those for packing, padding and stacking, and unusual ones."""

import torch
from torch import Tensor

from minise.layout import causal_mask

T = 140  # beyond two blocks of attention
DOCUMENTS = (30, 75, 35)  # tokens of each, T in all


def blocks(lengths: tuple[int, ...]) -> Tensor:
    """Prompts one after the other in one row: each sees itself only, causally."""
    return torch.block_diag(*(causal_mask(length) for length in lengths)).bool()


def restarts(lengths: tuple[int, ...]) -> Tensor:
    """Their positions: each begins at 0."""
    return torch.cat([torch.arange(length) for length in lengths])


def random_mask(T: int, share: float, seed: int) -> Tensor:
    """Each cell with that probability, above the diagonal too, and the diagonal."""
    cells = torch.rand(T, T, generator=torch.Generator().manual_seed(seed)) < share
    return cells | torch.eye(T, dtype=torch.bool)


def _masks() -> dict[str, Tensor]:
    index, causal = torch.arange(T), causal_mask(T)
    one_hole, no_one = causal.clone(), causal.clone()
    one_hole[100:120, 50:60] = False
    no_one[:, 40:44] = False
    padded = causal.clone()
    padded[:, :25] = False
    return {
        "causal": causal,
        "packed documents": blocks(DOCUMENTS),
        "a prefix that sees all of itself": causal | (index < 70),
        "everyone sees everyone": torch.ones(T, T, dtype=torch.bool),
        "everyone sees itself only": torch.eye(T, dtype=torch.bool),
        "the future only": causal.T,
        "left padding": padded | torch.eye(T, dtype=torch.bool),
        "some tokens that nobody sees": no_one | torch.eye(T, dtype=torch.bool),
        "a hole that some rows do not see": one_hole,
        "the first token and the last ten": causal & ((index[:, None] - index < 10) | (index < 1)),
        "every other token": causal & ((index[:, None] - index) % 2 == 0),
        "random below the diagonal": random_mask(T, 0.5, seed=1) & causal,
        "random and rare below the diagonal": random_mask(T, 0.03, seed=2) & causal,
        "random": random_mask(T, 0.5, seed=3),
        "random and rare": random_mask(T, 0.03, seed=4),
        "random and nearly full": random_mask(T, 0.97, seed=5),
    }


MASKS = _masks()
POSITIONS = {
    "as they stand": torch.arange(T),
    "backwards": torch.arange(T).flip(0),
    "shuffled": torch.randperm(T, generator=torch.Generator().manual_seed(6)),
    "with gaps": torch.arange(T) * 3 + 5,
    "starting over": restarts(DOCUMENTS),
    "all the same": torch.full((T,), 7),
}
