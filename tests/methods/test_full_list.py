"""The mean over random orders of the full list."""

import pytest
import torch

from minise import InputError, LanguageModel, Question, SelfEnsemble, standard
from minise import ask as ask_method
from minise.grouping import permutation
from minise.methods.full_list import FullList
from tests.support.methods import OTHER, ask, plan

ORDERS = [tuple(permutation(5, f"3/{OTHER.id}/{order}")) for order in range(4)]


def test_it_is_the_mean_over_standard_inference_in_each_order(lm: LanguageModel) -> None:
    assert plan(lm, "full-list", OTHER, orders=4).groups.trials == tuple((o,) for o in ORDERS)
    p = torch.zeros(4, 5, dtype=torch.float64)
    for row, order in zip(p, ORDERS, strict=True):
        turned = Question(OTHER.text, [OTHER.choices[i] for i in order])
        row[list(order)] = standard(lm, turned, engine="separate").probabilities
    found = ask(lm, "full-list", OTHER, orders=4)
    torch.testing.assert_close(found, p.mean(dim=0), rtol=0, atol=1e-10)


def test_with_the_null_option_only_the_length_of_the_lists_differs_from_self_ensemble(
    lm: LanguageModel,
) -> None:
    full = FullList(orders=4, null=True)
    asked = full.plan(lm, OTHER, 3)
    for order, prompt in zip(ORDERS, asked.prompts, strict=True):
        lines = [*(OTHER.choices[i] for i in order), "None of the above"]
        listed = "".join(f"({label}) {line}\n" for label, line in zip("ABCDEF", lines, strict=True))
        assert prompt.text == f"{OTHER.text}\n{listed}Answer:"
    short = SelfEnsemble(group_size=2, trials=4).plan(lm, OTHER, 3).groups.trials
    assert [sum(trial, ()) for trial in short] == asked.groups.flat
    whole = ask_method(lm, SelfEnsemble(group_size=5, trials=4), OTHER, 3)
    assert torch.equal(ask_method(lm, full, OTHER, 3).scores, whole.scores)


def test_fewer_than_one_order_are_refused() -> None:
    with pytest.raises(InputError, match="below 1"):
        plan(None, "full-list", OTHER, orders=0)  # type: ignore[arg-type]
