"""The public functions give the answers of the methods of the same names."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from minise import LanguageModel, Question, self_ensemble, standard
from minise import ask as ask_method
from minise.engines import branch_logits
from minise.method import Plan
from minise.methods.build import build
from minise.methods.registry import Variant
from tests.support.tiny import FAMILIES, load_tiny

QUESTION = Question(
    "Which is a metal?", ["oak", "wren", "zinc", "silk", "rain", "salt", "wool", "clay"], answer=2
)


OTHER = Question("Which one flies?", ["eel", "cat", "owl", "ant", "yak"], answer=2)


SIZES = {"group_size": 3, "trials": 4}


@pytest.fixture(scope="module", params=FAMILIES)
def lm(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> LanguageModel:
    return load_tiny(tmp_path_factory.mktemp(request.param), FAMILIES[request.param])


def ask(
    lm: LanguageModel, method: str, question: Question, engine: str = "tree", **settings: Any
) -> torch.Tensor:
    variant = Variant("x", method, settings, engine)
    return ask_method(lm, build(variant), question, 3, variant.engine).probabilities


def plan(
    lm: LanguageModel, method: str, question: Question, seed: int = 3, **settings: Any
) -> Plan:
    new_plan: Plan = build(Variant("x", method, settings)).plan(lm, question, seed)
    return new_plan


def test_the_methods_of_the_same_names_equal_the_public_functions(lm: LanguageModel) -> None:
    assert torch.equal(ask(lm, "standard", QUESTION), standard(lm, QUESTION).probabilities)
    p = ask(lm, "self-ensemble", QUESTION, **SIZES)
    assert torch.equal(p, self_ensemble(lm, QUESTION, 3, 4, seed=3).probabilities)
    p = ask(lm, "self-ensemble", QUESTION, "separate", **SIZES, null_option=False)
    expected = self_ensemble(lm, QUESTION, 3, 4, 3, "separate", null_option=False)
    assert torch.equal(p, expected.probabilities)


def test_standard_inference_equals_a_plain_run_of_its_prompt(lm: LanguageModel) -> None:
    standard_plan = plan(lm, "standard", OTHER)
    (prompt,) = standard_plan.prompts
    rows = branch_logits(
        lm, [*standard_plan.prefix, *prompt.ids], [[]], "separate", prompt.label_ids
    )
    expected = rows[0].double().softmax(0)
    torch.testing.assert_close(ask(lm, "standard", OTHER), expected, rtol=0, atol=1e-12)
