"""Presence: each choice alone against the null option."""

from __future__ import annotations

import pytest
import torch

from minise import InputError, LanguageModel
from minise import ask as ask_method
from minise.method import Preset, SelfEnsemble
from minise.methods.build import make_variants
from minise.methods.presence import Presence
from tests.support.methods import OTHER


def test_every_choice_is_asked_once_against_none_of_the_above(lm: LanguageModel) -> None:
    plan = Presence().plan(lm, OTHER)
    assert sorted(plan.groups.flat) == [(0,), (1,), (2,), (3,), (4,)]
    for (choice,), prompt in zip(plan.groups.flat, plan.prompts, strict=True):
        listed = f"(A) {OTHER.choices[choice]}\n(B) None of the above\n"
        assert prompt.text == f"{OTHER.text}\n{listed}Answer:"


def test_it_is_self_ensemble_with_groups_of_one(lm: LanguageModel) -> None:
    one = ask_method(lm, SelfEnsemble(1, 1, null_option=True), OTHER)
    assert torch.equal(ask_method(lm, Presence(), OTHER).scores, one.scores)


def test_none_of_the_above_is_written_whatever_the_preset(lm: LanguageModel) -> None:
    plan = Presence(preset=Preset(null_option=False)).plan(lm, OTHER)
    assert all("(B) None of the above" in prompt.text for prompt in plan.prompts)


def test_options_for_self_ensemble_do_not_change_it() -> None:
    (variant,) = make_variants(["presence"], {"group_size": 4, "trials": 7}, "tree")
    assert variant.settings == {"preset": "paper"}
    with pytest.raises(InputError, match="presence has no setting"):
        make_variants(["presence(trials=3)"], {}, "tree")
