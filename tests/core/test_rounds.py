"""Plans are run in passes and rounds, and this division does not change their results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import pytest
import torch
from torch import Tensor

from minise import LanguageModel, Plan, Question, SelfEnsemble, ask
from minise.method import OnText, Standard, label_logits
from minise.rounds import join, run_plan, run_plans

QUESTION = Question("Which is a metal?", ["oak", "zinc", "silk", "salt", "wool"])
OTHER = Question("Which one flies?", ["eel", "owl", "ant"])
ENSEMBLE = SelfEnsemble(2, 2)


@dataclass(frozen=True)
class Twice(SelfEnsemble):
    """Asks the same prompts again, `repeats` times."""

    name: ClassVar[str] = "twice"
    group_size: int = 2
    trials: int = 2
    repeats: int = 1

    def more(
        self, lm: LanguageModel, plan: Plan, logits: Sequence[Tensor], seed: int
    ) -> Plan | None:
        assert len(logits) == len(plan.prompts)
        first = plan.rounds[0] if plan.rounds else plan
        done = len(plan.prompts) // len(first.prompts)
        return first if done <= self.repeats else None


@dataclass(frozen=True)
class Writing(Standard):
    """Writes one piece of text, and adds it to the prompt's text."""

    name: ClassVar[str] = "writing"

    def write(
        self, lm: LanguageModel, plan: Plan, seed: int = 0, on_text: OnText | None = None
    ) -> Plan:
        if on_text is not None:
            on_text(0, f"seed {seed}")
        prompts = [replace(prompt, text=f"{prompt.text} written") for prompt in plan.prompts]
        return replace(plan, prompts=prompts)


def test_a_method_without_further_rounds_runs_its_plan_once(lm: LanguageModel) -> None:
    plan = ENSEMBLE.plan(lm, QUESTION, 1)
    run, logits = run_plan(lm, ENSEMBLE, plan, 1)
    assert run == plan
    assert len(logits) == len(plan.prompts)


@pytest.mark.parametrize("engine", ["separate", "dense", "tree", "plain"])
def test_the_answer_gets_all_rounds_joined_as_one_plan(lm: LanguageModel, engine: str) -> None:
    method = Twice(repeats=2)
    run, logits = run_plan(lm, method, method.plan(lm, QUESTION, 1), 1, engine)
    once = ENSEMBLE.plan(lm, QUESTION, 1)
    assert len(run.rounds) == 3
    assert len(logits) == len(run.prompts) == 3 * len(once.prompts)
    assert run.groups.trials == once.groups.trials * 3
    assert run.tokens("tree") == 3 * once.tokens("tree")
    expected = ask(lm, ENSEMBLE, QUESTION, 1, engine).scores
    torch.testing.assert_close(ask(lm, method, QUESTION, 1, engine).scores, expected)


def test_questions_in_one_pass_have_the_logits_of_separate_passes(lm: LanguageModel) -> None:
    method = Twice()
    plans = [method.plan(lm, question, 1) for question in (QUESTION, OTHER)]
    together = run_plans(lm, method, plans, [1, 1], "tree")
    for plan, (_, logits) in zip(plans, together, strict=True):
        alone = run_plan(lm, method, plan, 1)[1]
        assert all(torch.equal(a, b) for a, b in zip(alone, logits, strict=True))


@pytest.mark.parametrize(("engine", "passes"), [("tree", 1), ("dense", 2), ("separate", 2)])
def test_the_engine_tree_runs_two_questions_in_one_pass(
    lm: LanguageModel, monkeypatch: pytest.MonkeyPatch, engine: str, passes: int
) -> None:
    run: list[Plan] = []

    def watch(lm: LanguageModel, plan: Plan, engine: str) -> list[Tensor]:
        run.append(plan)
        return label_logits(lm, plan, engine)

    monkeypatch.setattr("minise.rounds.label_logits", watch)
    plans = [ENSEMBLE.plan(lm, question, 1) for question in (QUESTION, OTHER)]
    run_plans(lm, ENSEMBLE, plans, [1, 1], engine)
    assert len(run) == passes


def test_a_finished_question_takes_part_in_no_further_round(lm: LanguageModel) -> None:
    class OnlyTheFirst(Twice):
        def more(
            self, lm: LanguageModel, plan: Plan, logits: Sequence[Tensor], seed: int
        ) -> Plan | None:
            return super().more(lm, plan, logits, seed) if seed == 0 else None

    method = OnlyTheFirst()
    plans = [method.plan(lm, QUESTION, seed) for seed in (0, 1)]
    first, second = run_plans(lm, method, plans, [0, 1], "tree")
    assert [len(first[0].rounds), len(second[0].rounds)] == [2, 0]


def test_joined_plans_keep_every_prompt_whole(lm: LanguageModel) -> None:
    plans = [ENSEMBLE.plan(lm, question, 1) for question in (QUESTION, OTHER)]
    joined = join(plans)
    whole = [[*joined.prefix, *ids] for ids in joined.branches]
    assert whole == [[*plan.prefix, *ids] for plan in plans for ids in plan.branches]
    assert joined.question == QUESTION
    assert joined.rounds == tuple(plans)


def test_joining_uses_weight_one_for_a_plan_without_weights(lm: LanguageModel) -> None:
    plain = ENSEMBLE.plan(lm, QUESTION, 1)
    count = len(plain.groups.flat)
    weighted = replace(plain, groups=replace(plain.groups, weights=(2.0,) * count))
    assert join([weighted, plain]).groups.weights == (2.0,) * count + (1.0,) * count
    assert join([plain, plain]).groups.weights is None


def test_text_that_a_method_writes_is_in_its_plan_and_is_reported(lm: LanguageModel) -> None:
    pieces: list[tuple[int, str]] = []
    method = Writing()
    plan = method.plan(lm, QUESTION, 3)
    run, _ = run_plan(lm, method, plan, 3, on_text=lambda *piece: pieces.append(piece))
    assert pieces == [(0, "seed 3")]
    assert [prompt.text for prompt in run.prompts] == [f"{plan.prompts[0].text} written"]
