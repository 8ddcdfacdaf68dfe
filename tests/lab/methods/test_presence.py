"""Presence: each choice alone against the null option."""

import torch

from minise import LocalModel, SelfEnsemble
from minise import ask as ask_method
from minise.lab.methods.presence import Presence
from tests.lab.support.methods import texts_of
from tests.reference.support.questions import OTHER


def test_every_choice_is_asked_once_against_none_of_the_above(lm: LocalModel) -> None:
    plan, prompts = Presence().prompts(lm, OTHER)
    assert sorted(plan.groups.flat) == [(0,), (1,), (2,), (3,), (4,)]
    for (choice,), text in zip(plan.groups.flat, texts_of(lm, prompts), strict=True):
        listed = f"(A) {OTHER.choices[choice]}\n(B) None of the above\n"
        assert text == f"{OTHER.text}\n{listed}Answer:"
    one = ask_method(lm, SelfEnsemble(1, 1, null_option=True), OTHER)
    answer = ask_method(lm, Presence(), OTHER)
    assert torch.equal(answer.scores, one.scores)
    for group in answer.groups:
        assert group.null is not None
        assert abs(group.null + float(group.probabilities) - 1) < 1e-12
