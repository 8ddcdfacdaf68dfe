"""The public functions give the answers of the methods of the same names."""

from __future__ import annotations

import torch

from minise import LanguageModel, SelfEnsemble, self_ensemble, standard
from minise import ask as ask_method
from minise.engines import branch_logits
from tests.support.methods import OTHER, QUESTION, SIZES, ask, plan


def test_the_methods_of_the_same_names_equal_the_public_functions(lm: LanguageModel) -> None:
    assert torch.equal(ask(lm, "standard", QUESTION), standard(lm, QUESTION).probabilities)
    p = ask(lm, "self-ensemble", QUESTION, **SIZES)
    assert torch.equal(p, self_ensemble(lm, QUESTION, 3, 4, seed=3).probabilities)
    p = ask(lm, "self-ensemble", QUESTION, "separate", **SIZES, null_option=False)
    expected = self_ensemble(lm, QUESTION, 3, 4, 3, "separate", null_option=False)
    assert torch.equal(p, expected.probabilities)


def test_the_defaults_are_the_papers(lm: LanguageModel) -> None:
    answer, expected = self_ensemble(lm, QUESTION), ask_method(lm, SelfEnsemble(4, 20), QUESTION, 0)
    assert [g.choices for g in answer.groups] == [g.choices for g in expected.groups]
    assert torch.equal(answer.probabilities, expected.probabilities)


def test_standard_inference_equals_a_plain_run_of_its_prompt(lm: LanguageModel) -> None:
    standard_plan = plan(lm, "standard", OTHER)
    (prompt,) = standard_plan.prompts
    rows = branch_logits(
        lm, [*standard_plan.prefix, *prompt.ids], [[]], "separate", prompt.label_ids
    )
    expected = rows[0].double().softmax(0)
    torch.testing.assert_close(ask(lm, "standard", OTHER), expected, rtol=0, atol=1e-12)
