"""The mean over random orders of the full list."""

import pytest
import torch

from minise import InputError, LocalModel, Question, SelfEnsemble, standard
from minise import ask as ask_method
from minise.grouping import permutation
from minise.lab.methods.full_list import FullList
from tests.lab.support.methods import ask, groups, prompts, texts_of
from tests.reference.support.questions import OTHER

ORDERS = [tuple(permutation(5, f"3/{OTHER.id}/{order}")) for order in range(4)]


def test_it_is_the_mean_over_standard_inference_in_each_order(lm: LocalModel) -> None:
    assert groups(lm, FullList(orders=4), OTHER, seed=3) == ORDERS
    p = torch.zeros(4, 5, dtype=torch.float64)
    for row, order in zip(p, ORDERS, strict=True):
        turned = Question(OTHER.text, [OTHER.choices[i] for i in order])
        row[list(order)] = standard(lm, turned, engine="separate").normalized
    found = ask(lm, "full-list", OTHER, orders=4)
    torch.testing.assert_close(found, p.mean(dim=0), rtol=0, atol=1e-10)


def test_with_the_null_option_only_the_length_of_the_lists_differs_from_self_ensemble(
    lm: LocalModel,
) -> None:
    full = FullList(orders=4, null=True)
    _, asked = full.prompts(lm, OTHER, 3)
    for order, text in zip(ORDERS, texts_of(lm, asked), strict=True):
        lines = [*(OTHER.choices[i] for i in order), "None of the above"]
        listed = "".join(f"({label}) {line}\n" for label, line in zip("ABCDEF", lines, strict=True))
        assert text == f"{OTHER.text}\n{listed}Answer:"
    short, _ = SelfEnsemble(group_size=2, trials=4).prompts(lm, OTHER, 3)
    assert [sum(trial, ()) for trial in short.groups.trials] == ORDERS
    whole = ask_method(lm, SelfEnsemble(group_size=5, trials=4), OTHER, 3)
    assert torch.equal(ask_method(lm, full, OTHER, 3).scores, whole.scores)


def test_fewer_than_one_order_are_refused() -> None:
    with pytest.raises(InputError, match="below 1"):
        prompts(None, "full-list", OTHER, orders=0)  # type: ignore[arg-type]
