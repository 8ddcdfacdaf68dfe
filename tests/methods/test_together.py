"""Several questions in one pass have the results of a pass for each."""

import pytest
import torch

from minise import LanguageModel, Plan, SelfEnsemble, Standard
from minise.engines import ENGINES
from minise.method import label_logits
from minise.methods.ablations import WithoutMask
from minise.methods.together import pass_logits
from tests.support.methods import OTHER, QUESTION


def asked(lm: LanguageModel) -> list[Plan]:
    return [SelfEnsemble(3, 2).plan(lm, QUESTION), Standard().plan(lm, OTHER)]


@pytest.mark.parametrize("engine", ENGINES)
def test_each_question_gets_the_rows_of_a_pass_of_its_own(lm: LanguageModel, engine: str) -> None:
    plans = asked(lm)
    together = pass_logits(lm, plans, engine)
    for plan, rows in zip(plans, together, strict=True):
        alone = label_logits(lm, plan, engine)
        assert all(torch.equal(a, b) for a, b in zip(rows, alone, strict=True))


def test_a_pass_is_one_run_for_the_tree_and_one_for_each_layout(
    qwen: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs: list[int] = []
    monkeypatch.setattr(
        "minise.methods.together.label_logits",
        lambda lm, plan, engine, total: (runs.append(len(plan.prompts)), label_logits(lm, plan))[1],
    )
    plans = asked(qwen)
    pass_logits(qwen, plans, "tree")
    assert runs == [sum(len(plan.prompts) for plan in plans)]
    runs.clear()
    pass_logits(qwen, [*plans, WithoutMask(3, 1).plan(qwen, QUESTION)], "tree")
    assert runs == [6, 1, 3]
