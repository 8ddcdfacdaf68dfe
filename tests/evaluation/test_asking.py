"""Questions that share a pass, and methods that ask several times: the numbers stay the same."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from minise import InputError, LanguageModel, Question, SelfEnsemble, pack
from minise import method as ensemble
from minise.commands.cli import main
from minise.evaluation import asking
from minise.evaluation.asking import Asker, ask_each, for_trial
from minise.groupings.exact import all_ordered_groups
from minise.method import Plan, label_logits
from minise.methods.build import build
from minise.methods.registry import Variant
from minise.methods.rotations import tokens_so_far
from minise.names import ENGINES
from minise.rounds import join, run_plan, run_plans
from tests.support.runs import METHODS, arguments

pytest.importorskip("sklearn")
QUESTIONS = [
    Question("Which is a metal?", ["oak", "wren", "zinc", "silk", "rain"], answer=2, id="a"),
    Question("Which one flies?", ["eel", "cat", "owl", "ant"], answer=2, id="b"),
    Question("Which grows?", ["salt", "oak", "clay"], answer=1, id="c"),
]
PAIRS = [(seed, question) for seed in (0, 1) for question in QUESTIONS]


@dataclass(frozen=True)
class Rounds(SelfEnsemble):
    """One trial a round, as many rounds as the question has choices beyond two."""

    name: ClassVar[str] = "rounds"
    group_size: int = 2
    trials: int = 1

    def more(
        self, lm: LanguageModel, plan: Plan, logits: Sequence[Tensor], seed: int
    ) -> Plan | None:
        assert len(logits) == len(plan.prompts) == len(plan.groups.flat)
        done = len(plan.rounds) or 1
        if done >= len(plan.question.choices) - 2:
            return None
        return self.plan(lm, plan.question, 1000 * done + seed)


def in_one(method: Rounds, lm: LanguageModel, question: Question, seed: int) -> Plan:
    """All the rounds of a question, asked at once."""
    rounds = range(len(question.choices) - 2)
    return join([method.plan(lm, question, 1000 * i + seed if i else seed) for i in rounds])


@pytest.mark.parametrize("engine", ENGINES)
def test_plans_in_one_pass_get_the_logits_that_each_gets_alone(
    lm: LanguageModel, engine: str
) -> None:
    plans = [SelfEnsemble(3, 4).plan(lm, q, seed) for seed, q in PAIRS]
    together = run_plans(lm, SelfEnsemble(3, 4), plans, [seed for seed, _ in PAIRS], engine)
    for plan, (run, logits) in zip(plans, together, strict=True):
        assert run is plan
        alone = label_logits(lm, plan, engine)
        assert all(torch.equal(a, b) for a, b in zip(logits, alone, strict=True))


def test_plans_in_one_pass_cause_one_call_of_the_model(
    lm: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    passes = []
    real = ensemble.branch_logits

    def counted(lm: LanguageModel, prefix: Any, branches: Any, *more: Any) -> Tensor:
        passes.append(len(branches))
        return real(lm, prefix, branches, *more)

    monkeypatch.setattr(ensemble, "branch_logits", counted)
    plans = [SelfEnsemble(3, 4).plan(lm, q) for q in QUESTIONS]
    run_plans(lm, SelfEnsemble(3, 4), plans, [0, 0, 0], "tree")
    assert passes == [sum(len(plan.prompts) for plan in plans)]
    # One round more for the first two questions, and another for the first.
    passes.clear()
    plans = [Rounds().plan(lm, q) for q in QUESTIONS]
    run_plans(lm, Rounds(), plans, [0, 0, 0], "tree")
    assert passes == [3 + 2 + 2, 3 + 2, 3]


@pytest.mark.parametrize("engine", ENGINES)
def test_rounds_give_the_answer_of_one_round_with_all_prompts(
    lm: LanguageModel, engine: str
) -> None:
    method = Rounds()
    for seed, question in PAIRS:
        plan, logits = run_plan(lm, method, method.plan(lm, question, seed), seed, engine)
        whole = in_one(method, lm, question, seed)
        assert plan.groups == whole.groups
        expected = label_logits(lm, whole, engine)
        answers = [method.answer(plan, rows).probabilities for rows in (logits, expected)]
        if engine == "plain":  # one softmax over more tokens
            assert (answers[0] - answers[1]).abs().max() <= 1e-12
            continue
        assert all(torch.equal(a, b) for a, b in zip(logits, expected, strict=True))
        assert torch.equal(*answers)


def test_each_round_costs_the_tokens_of_its_prompts(lm: LanguageModel) -> None:
    plan, _ = run_plan(lm, Rounds(), Rounds().plan(lm, QUESTIONS[0]), 0)
    assert len(plan.rounds) == 3
    for engine in ENGINES:
        each = [one.tokens(engine) for one in plan.rounds]
        assert plan.tokens(engine) == sum(each)
        so_far = tokens_so_far(plan, engine)
        assert len(so_far) == len(plan.prompts)
        assert so_far == sorted(so_far)
        assert [so_far[i] for i in (2, 5, 8)] == [sum(each[:n]) for n in (1, 2, 3)]


def test_joined_plans_keep_the_weights_of_their_groups(lm: LanguageModel) -> None:
    exact = SelfEnsemble(2, 1, all_ordered_groups).plan(lm, QUESTIONS[2])
    plain = SelfEnsemble(2, 1).plan(lm, QUESTIONS[2])
    assert exact.groups.weights
    weights = join([plain, exact]).groups.weights
    assert weights == (1.0,) * len(plain.prompts) + exact.groups.weights
    assert join([plain, plain]).groups.weights is None


def test_joined_plans_keep_their_layouts_as_rounds(lm: LanguageModel) -> None:
    plan = SelfEnsemble(2, 1).plan(lm, QUESTIONS[2])
    flat = replace(plan, layout=pack(plan.prefix, plan.branches, tree=False))
    joined = join([flat, plan])
    assert joined.layout is None
    assert [one.layout for one in joined.rounds] == [flat.layout, None]


class TestAnEvaluation:
    def asker(
        self, lm: LanguageModel, most: int, method: Any = None, engine: str = "tree"
    ) -> Asker:
        variant = Variant("x", "self-ensemble", engine=engine)
        return Asker(lm, method or SelfEnsemble(3, 4), variant, True, most)

    def samples(self, lm: LanguageModel, most: int, method: Any = None) -> list[dict[str, Any]]:
        samples = ask_each(self.asker(lm, most, method), PAIRS)
        every = [json.loads(sample.line()) for sample in samples]
        assert all(sample.pop("seconds") > 0 for sample in every)
        return every

    @pytest.mark.parametrize("method", [SelfEnsemble(3, 4), Rounds()])
    def test_has_the_same_samples_for_any_size_of_a_pass(
        self, lm: LanguageModel, method: Any
    ) -> None:
        alone = self.samples(lm, 0, method)
        assert [sample["id"] for sample in alone] == ["a", "b", "c", "a", "b", "c"]
        for most in (1, 150, 10**6):
            assert self.samples(lm, most, method) == alone

    @pytest.mark.parametrize(
        ("engine", "most", "sizes"),
        [
            ("tree", 0, [1] * 6),
            ("tree", 10**6, [6]),
            ("tree", 600, None),
            ("dense", 10**6, [1] * 6),
        ],
    )
    def test_fills_a_pass_with_questions(
        self, lm: LanguageModel, engine: str, most: int, sizes: list[int] | None
    ) -> None:
        passes = list(asking._passes(self.asker(lm, most, engine=engine), PAIRS))
        assert [(seed, question) for one in passes for seed, question, _ in one] == PAIRS
        if sizes:
            assert [len(one) for one in passes] == sizes
            return
        tokens = [sum(plan.tokens(engine) for *_, plan in one) for one in passes]
        assert all(n <= most or len(one) == 1 for n, one in zip(tokens, passes, strict=True))
        following = [one[0][2].tokens(engine) for one in passes[1:]]
        assert all(n + more > most for n, more in zip(tokens, following, strict=False))
        assert 1 < len(passes) < 6

    def test_keeps_the_result_of_each_prompt_if_requested(self, lm: LanguageModel) -> None:
        method, variant = SelfEnsemble(3, 4), Variant("x", "self-ensemble")
        bare = next(ask_each(Asker(lm, method, variant), PAIRS))
        sample = next(ask_each(Asker(lm, method, variant, keep_groups=True), PAIRS))
        assert bare.groups is None
        assert sample.groups is not None
        assert len(sample.groups) == len(method.plan(lm, QUESTIONS[0], 0).prompts)

    def test_fills_a_pass_to_the_last_token(self, lm: LanguageModel) -> None:
        tokens = SelfEnsemble(3, 4).plan(lm, QUESTIONS[0], 0).tokens("tree")
        for most, sizes in ((2 * tokens, [2, 2, 2]), (2 * tokens - 1, [1] * 6)):
            passes = asking._passes(self.asker(lm, most), [(0, QUESTIONS[0])] * 6)
            assert [len(one) for one in passes] == sizes

    def test_divides_the_seconds_of_a_pass_by_tokens(
        self, lm: LanguageModel, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def ten(ask: Any, device: Any) -> float:
            ask()
            return 10.0

        monkeypatch.setattr(asking, "timed", ten)
        samples = list(ask_each(self.asker(lm, 10**6), PAIRS))
        assert sum(sample.seconds for sample in samples) == pytest.approx(10)
        assert len({round(sample.seconds / sample.tokens, 9) for sample in samples}) == 1

    def test_asks_questions_one_by_one_if_they_fail_together(
        self, lm: LanguageModel, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        expected, run = self.samples(lm, 10**6), asking.run_plans

        def fails(lm: LanguageModel, method: Any, plans: Sequence[Plan], *more: Any) -> Any:
            if len(plans) > 1:
                raise InputError("too many")
            return run(lm, method, plans, *more)

        monkeypatch.setattr(asking, "run_plans", fails)
        assert self.samples(lm, 10**6) == expected

    def test_plans_the_next_pass_while_the_model_runs(self, lm: LanguageModel) -> None:
        planned: dict[str, threading.Event] = {q.id: threading.Event() for q in QUESTIONS}
        threads = set()

        class Watched(SelfEnsemble):
            def plan(self, lm: LanguageModel, question: Question, seed: int = 0) -> Plan:
                threads.add(threading.current_thread())
                planned[question.id].set()
                return super().plan(lm, question, seed)

            def answer(self, plan: Plan, logits: Sequence[Tensor]) -> Any:
                following = {"a": "b", "b": "c", "c": "c"}[plan.question.id]
                assert planned[following].wait(60)
                return super().answer(plan, logits)

        pairs = [(0, question) for question in QUESTIONS]
        asker = Asker(lm, Watched(3, 4), Variant("x", "standard"))
        assert len(list(ask_each(asker, pairs))) == 3
        assert len(threads) == 1
        assert threading.current_thread() not in threads

    @pytest.mark.parametrize("most", [0, 10**6])
    @pytest.mark.parametrize("where", ["plan", "answer", "model"])
    def test_a_question_that_fails_is_named_after_the_samples_before_it(
        self, lm: LanguageModel, most: int, where: str
    ) -> None:
        class Fails(SelfEnsemble):
            def plan(self, lm: LanguageModel, question: Question, seed: int = 0) -> Plan:
                if (where, question.id) == ("plan", "c"):
                    raise InputError("no")
                plan = super().plan(lm, question, seed)
                if (where, question.id) == ("model", "c"):
                    plan.prompts[0].ids.append(10**9)
                return plan

            def answer(self, plan: Plan, logits: Sequence[Tensor]) -> Any:
                if (where, plan.question.id) == ("answer", "c"):
                    raise InputError("no")
                return super().answer(plan, logits)

        asker = Asker(lm, Fails(3, 4), Variant("x", "standard"), tokens_per_pass=most)
        samples = ask_each(asker, PAIRS)
        assert [next(samples).id for _ in range(2)] == ["a", "b"]
        with pytest.raises(InputError, match=r'question "c", x: (no|token id 1000000000)'):
            next(samples)


def test_a_trial_lets_a_model_write_one_token() -> None:
    """Whether a question can be asked does not depend on the budget."""
    for budget in (1, 2, 300):
        variant = Variant("x", "reasoning", {"max_new_tokens": budget})
        assert for_trial(variant, build(variant)).max_new_tokens == 1
    method = build(Variant("x", "standard"))
    assert for_trial(Variant("x", "standard"), method) is method


@pytest.mark.usefixtures("undrawn")
def test_the_option_tokens_per_pass_changes_no_number(
    model: Path, data: Path, whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    methods = ("--method", METHODS)
    assert main(arguments(model, data, tmp_path, *methods, "--tokens-per-pass", 2000)) == 0
    results, expected = (
        json.loads((folder / "results.json").read_text()) for folder in (tmp_path, whole)
    )
    assert results["results"] == expected["results"]
    assert results["differences"] == expected["differences"]
    capsys.readouterr()
    assert main(arguments(model, data, tmp_path, *methods, "--tokens-per-pass", 0)) == 2
    assert "--tokens-per-pass 0 is below 1" in capsys.readouterr().err
