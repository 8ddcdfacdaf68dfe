"""Priors and orders: each method against its published definition, computed by hand on small
numbers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from minise import InputError, LanguageModel, Question, standard
from minise import ask as ask_method
from minise.engines import branch_logits
from minise.grouping import Groups
from minise.method import Answer, Plan, Standard
from minise.methods.build import build
from minise.methods.priors import (
    ContextualCalibration,
    PriDe,
)
from minise.methods.registry import Variant
from minise.methods.rotations import Permutations
from minise.methods.sample import Sample
from minise.prompt import Prompt
from tests.support.tiny import FAMILIES, load_tiny

METALS = ["oak", "wren", "zinc", "silk", "rain", "salt", "wool", "clay"]
QUESTION = Question("Which is a metal?", METALS, answer=2)
FOUR = Question("Which one flies?", ["eel", "cat", "owl", "ant"], answer=2)
SIZES = {"group_size": 3, "trials": 4}


@pytest.fixture(scope="module")
def lm(tmp_path_factory: pytest.TempPathFactory) -> LanguageModel:
    return load_tiny(tmp_path_factory.mktemp("llama"), FAMILIES["llama"])


def log(*p: float) -> Tensor:
    """Logits of these probabilities, shifted: a constant must change nothing."""
    return torch.tensor(p, dtype=torch.float64).log() + 3


def of_choices(K: int, *groups: tuple[int, ...]) -> Plan:
    """A plan without prompts, to test what `answer` computes from logits."""
    question = Question("Which?", [f"choice {i}" for i in range(K)])
    return Plan(question, Groups((groups,)), [], [])


def close(answer: Answer, *expected: float) -> None:
    assert answer.probabilities.tolist() == pytest.approx(expected, abs=1e-6)
    assert answer.prediction == max(range(len(expected)), key=expected.__getitem__)


class TestPriorsOfAPrompt:
    def test_contextual_calibration_divides_by_the_mean_of_the_content_free_answers(self) -> None:
        """p = (.5, .25, .25). The vocabulary has a fourth token. The labels' mean probabilities are
        (.5, .3, .2) / 2: the quotients are proportional to 1, 10/12 and 15/12. The second input,
        after which labels are unlikely, hardly counts."""
        free = [log(0.45, 0.27, 0.18, 0.1), log(0.02, 0.02, 0.02, 0.94), log(0.5, 0.3, 0.2, 1e-9)]
        prompts = [Prompt("", [], [0, 1, 2])]
        plan = replace(of_choices(3, (0, 1, 2)), prompts=prompts)
        prior = [(0.45 + 0.02 + 0.5) / 3, (0.27 + 0.02 + 0.3) / 3, (0.18 + 0.02 + 0.2) / 3]
        ratios = [p / q for p, q in zip((0.5, 0.25, 0.25), prior, strict=True)]
        answer = ContextualCalibration().answer(plan, [log(0.5, 0.25, 0.25), *free])
        close(answer, *(ratio / sum(ratios) for ratio in ratios))

    def test_the_content_free_inputs_hold_nothing_of_the_question(self, lm: LanguageModel) -> None:
        plan = ContextualCalibration().plan(lm, FOUR, 0)
        question_text, *free = [prompt.text for prompt in plan.prompts]
        assert question_text == "Which one flies?\n(A) eel\n(B) cat\n(C) owl\n(D) ant\nAnswer:"
        for text, filler in zip(free, ("N/A", "[MASK]", ""), strict=True):
            lines = "".join(f"({label}) {filler}\n" for label in "ABCD")
            assert text == f"{filler}\n{lines}Answer:"
        vocabulary = lm.config.vocab_size
        assert [len(prompt.label_ids) for prompt in plan.prompts] == [4, *[vocabulary] * 3]

    @pytest.mark.parametrize("engine", ["separate", "dense", "tree"])
    def test_the_content_free_prompts_run_on_every_engine(
        self, lm: LanguageModel, engine: str
    ) -> None:
        method = ContextualCalibration()
        mass = []
        for text in ("N/A", "[MASK]", ""):
            choices = [text] * 4
            prompt = Standard().preset.of("llama").template.render(text, choices)
            logits = branch_logits(lm, [], lm.tokenizer.encode([prompt])).double()[0]
            labels = [lm.tokenizer.encode([f"{prompt} {label}"])[0][-1] for label in "ABCD"]
            mass.append(logits.softmax(dim=-1)[labels])
        expected = standard(lm, FOUR).probabilities / torch.stack(mass).mean(dim=0)
        actual = ask_method(lm, method, FOUR, 5, engine).probabilities
        torch.testing.assert_close(actual, expected / expected.sum(), rtol=0, atol=1e-10)

    def test_their_tokens_count_all_their_prompts(self, lm: LanguageModel) -> None:
        """The prompts for the prior share only a short beginning with the question's."""
        alone = build(Variant("x", "standard")).plan(lm, FOUR, 0)
        plan = ContextualCalibration().plan(lm, FOUR, 0)
        assert len(plan.prompts) == 4
        separate = sum(len(plan.prefix) + len(ids) for ids in plan.branches)
        assert plan.tokens("separate") == separate > alone.tokens("separate")
        assert alone.tokens("tree") < plan.tokens("tree") < separate


def sample(number: int, logits: list[float], seed: int = 0, **more: Any) -> Sample:
    p = torch.tensor(logits).double().softmax(0).tolist()
    return Sample(f"q{number}", seed, "h", 0, p.index(max(p)), p, p, 10, logits=logits, **more)


class TestPriorsOfARun:
    def as_cyclic(self, one: Sample) -> Sample:
        """Its two rotations, by label: (.8, .2) and (.6, .4)."""
        rotations = [((0, 1), [0.8, 0.2]), ((1, 0), [0.6, 0.4])]
        groups = [
            {"choices": list(order), "probabilities": p, "null": None, "trial": t, "tokens": 30}
            for t, (order, p) in enumerate(rotations)
        ]
        p = [0.6, 0.4]  # choice 0: (.8 + .4) / 2
        return replace(one, probabilities=p, scores=p, groups=groups, logits=None, tokens=30)

    def test_pride_estimates_from_a_few_and_debiases_the_others(self) -> None:
        """The prior of one question is softmax of the mean log-probability by label:
        sqrt(.8 * .6) : sqrt(.2 * .4) = sqrt(6) : 1. So (.7, .3) becomes .7 : .3 sqrt(6)."""
        standard = [sample(i, log(0.7, 0.3).tolist(), seed) for seed in (0, 1) for i in range(40)]
        samples = {"standard": standard, "cyclic": [self.as_cyclic(one) for one in standard]}
        fitted = PriDe(share=0.05).fit(samples)
        assert [one.key for one in fitted] == [one.key for one in standard]
        debiased = 0.7 / (0.7 + 0.3 * 6**0.5)
        for seed in (0, 1):
            of_seed = [one for one in fitted if one.seed == seed]
            estimating = [one for one in of_seed if one.tokens == 30]
            assert len(estimating) == 2
            assert all(one.probabilities == [0.6, 0.4] for one in estimating)
            others = [one for one in of_seed if one.tokens == 10]
            assert len(others) == 38
            assert all(one.probabilities[0] == pytest.approx(debiased) for one in others)
            assert {one.prediction for one in others} == {1}
        chosen = [{one.id for one in fitted if one.tokens == 30 and one.seed == s} for s in (0, 1)]
        assert chosen[0] != chosen[1]

    def test_the_estimating_questions_do_not_depend_on_the_order(self) -> None:
        standard = [sample(i, log(0.7, 0.3).tolist()) for i in range(40)]
        both = [
            PriDe(share=0.1).fit({"standard": one, "cyclic": [self.as_cyclic(x) for x in one]})
            for one in (standard, standard[::-1])
        ]
        assert both[0] == both[1][::-1]
        assert [one.tokens for one in both[0]].count(30) == 4

    def test_unusable_samples_are_refused_in_one_line(self) -> None:
        one = sample(0, log(0.7, 0.3).tolist())
        for method in (PriDe(),):
            with pytest.raises(InputError, match=r"needs the same number .*found 4 to 8"):
                method.check([(0, FOUR), (0, QUESTION)])
            method.check([(0, FOUR), (1, FOUR)])
            blank = replace(one, logits=None)
            with pytest.raises(InputError, match="q0: no label logits; give standard inference's"):
                method.fit({"standard": [blank], "cyclic": [self.as_cyclic(replace(one, id="r"))]})
        with pytest.raises(InputError, match="q0: its rotations are not kept; run cyclic again"):
            PriDe().fit({"standard": [one], "cyclic": [one]})
        for share in (0.0, 1.5):
            with pytest.raises(InputError, match=f"share={share} is wrong; give a number above 0"):
                PriDe(share=share).fit({"standard": [one], "cyclic": [self.as_cyclic(one)]})


class TestPermutations:
    def test_it_is_the_mean_over_random_orders_of_the_question(self, lm: LanguageModel) -> None:
        method = Permutations(count=3)
        orders = method.plan(lm, FOUR, 5).groups.flat
        assert len(set(orders)) == 3
        expected = torch.zeros(4, dtype=torch.float64)
        for order in orders:
            turned = Question(FOUR.text, [FOUR.choices[i] for i in order])
            expected[list(order)] += standard(lm, turned, engine="separate").probabilities / 3
        actual = ask_method(lm, method, FOUR, 5).probabilities
        torch.testing.assert_close(actual, expected, rtol=0, atol=1e-10)
        assert Permutations(count=7).plan(lm, FOUR, 5).groups.flat[:3] == orders
        assert method.plan(lm, FOUR, 6).groups.flat != orders

    def test_zero_orders_are_refused(self, lm: LanguageModel) -> None:
        with pytest.raises(InputError, match="number of trials 0 is below 1"):
            Permutations(count=0).plan(lm, FOUR, 0)


@pytest.mark.parametrize("name", ["permutations", "contextual-calibration"])
def test_more_choices_than_labels_are_one_line(lm: LanguageModel, name: str) -> None:
    many = Question("Which?", [f"c{i}" for i in range(30)])
    with pytest.raises(InputError, match="30 choices in one prompt, but only 26 labels"):
        build(Variant("x", name)).plan(lm, many, 0)


def test_they_answer_with_each_family(tmp_path: Path) -> None:
    """With each family, in the dtype of evaluations."""
    for family, raw in FAMILIES.items():
        model = load_tiny(tmp_path / family, raw, dtype=torch.float32)
        for name in ("contextual-calibration", "permutations"):
            answer = ask_method(model, build(Variant("x", name, SIZES)), FOUR, 0)
            assert float(answer.probabilities.sum()) == pytest.approx(1)
