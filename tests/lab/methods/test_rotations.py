"""The mean over orders of the whole question, and orders that the seed draws."""

import pytest
import torch
from torch import Tensor

from minise import InputError, LocalModel, Method, Question, standard
from minise.grouping import permutation
from minise.lab.methods.full_list import FullList
from minise.lab.methods.rotations import Cyclic
from tests.lab.support.methods import ask, groups
from tests.reference.support.questions import OTHER, read

ORDERS = [tuple((start + i) % 5 for i in range(5)) for start in range(5)]


def in_each(lm: LocalModel, orders: list[tuple[int, ...]]) -> Tensor:
    """Standard inference on the question with its choices in each order: (orders, K), by choice."""
    p = torch.zeros(len(orders), len(OTHER.choices), dtype=torch.float64)
    for row, order in zip(p, orders, strict=True):
        turned = Question(OTHER.text, [OTHER.choices[i] for i in order])
        row[list(order)] = standard(lm, turned, engine="separate").normalized
    return p


def test_cyclic_gives_the_mean_over_all_rotations_of_the_question(lm: LocalModel) -> None:
    assert groups(lm, Cyclic(), OTHER) == ORDERS
    # Every choice has every label once.
    assert all(sorted(column) == [0, 1, 2, 3, 4] for column in zip(*ORDERS, strict=True))
    p = in_each(lm, ORDERS)
    found = ask(lm, "cyclic", OTHER)
    torch.testing.assert_close(found, p.mean(dim=0), rtol=0, atol=1e-10)
    product = p.prod(dim=0) ** (1 / 5)
    found = ask(lm, "cyclic(mean=geometric)", OTHER)
    torch.testing.assert_close(found, product / product.sum(), rtol=0, atol=1e-10)


def test_a_prior_of_the_labels_divides_out_of_the_geometric_mean_alone(lm: LocalModel) -> None:
    generator = torch.Generator().manual_seed(0)
    logits = [*torch.randn(5, 5, dtype=torch.float64, generator=generator)]
    prior = torch.tensor([0.6, 0.2, 0.1, 0.06, 0.04], dtype=torch.float64)
    for mean, changes in (("arithmetic", True), ("geometric", False)):
        cyclic = Cyclic(mean=mean)
        plan, _ = cyclic.prompts(lm, OTHER)
        p = cyclic.answer(plan, read(*logits)).normalized
        without = cyclic.answer(plan, read(*[row - prior.log() for row in logits]))
        assert bool((without.normalized - p).abs().max() > 1e-12) == changes
        assert [group.choices for group in without.groups] == ORDERS
    with pytest.raises(InputError, match=r'"median".*geometric'):
        Cyclic(mean="median").prompts(lm, OTHER)


@pytest.mark.parametrize("shuffled", [FullList(orders=1), Cyclic(shuffled=True)])
def test_shuffled_lists_the_choices_in_an_order_of_the_seed(
    lm: LocalModel, shuffled: Method
) -> None:
    orders = groups(lm, shuffled, OTHER, seed=3)
    assert orders[0] == tuple(permutation(5, f"3/{OTHER.id}/0")) != ORDERS[0]
    assert groups(lm, shuffled, OTHER, seed=4)[0] != orders[0]
    p = in_each(lm, orders).mean(dim=0)
    plan, prompts = shuffled.prompts(lm, OTHER, seed=3)
    found = shuffled.answer(plan, lm.logits(prompts)).scores  # by the question's own indices
    torch.testing.assert_close(found, p, rtol=0, atol=1e-10)
    assert groups(lm, Cyclic(), OTHER, seed=3)[0] == ORDERS[0]
