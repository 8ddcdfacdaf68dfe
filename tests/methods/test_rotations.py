"""The mean over orders of the whole question: all rotations, or some drawn at random."""

from __future__ import annotations

import torch
from torch import Tensor

from minise import LanguageModel, Question, standard
from minise.methods.rotations import Cyclic
from tests.support.methods import OTHER, ask


def mean_over(lm: LanguageModel, orders: list[tuple[int, ...]]) -> Tensor:
    """By standard inference on the question with its choices in each order."""
    total = torch.zeros(len(OTHER.choices), dtype=torch.float64)
    for order in orders:
        turned = Question(OTHER.text, [OTHER.choices[i] for i in order])
        total[list(order)] += standard(lm, turned, engine="separate").probabilities
    return total / len(orders)


def test_cyclic_gives_the_mean_over_all_rotations_of_the_question(lm: LanguageModel) -> None:
    orders = [tuple((start + i) % 5 for i in range(5)) for start in range(5)]
    assert Cyclic().plan(lm, OTHER).groups.flat == orders
    # Every choice has every label once.
    assert all(sorted(column) == [0, 1, 2, 3, 4] for column in zip(*orders, strict=True))
    p = ask(lm, "cyclic", OTHER)
    torch.testing.assert_close(p, mean_over(lm, orders), rtol=0, atol=1e-10)
