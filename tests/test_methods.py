"""Each method asks what it says it asks, and how prompts share a forward pass changes nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from minise import InputError, LanguageModel, Question, self_ensemble, standard
from minise.ensemble import answer, branch_logits, run
from minise.evaluation.methods import METHODS, Method, plan_rotations
from minise.layout import token_counts
from minise.presets import PAPER
from minise.verify import verify
from tests.tiny import FAMILIES, load_tiny

QUESTION = Question(
    "Which is a metal?", ["oak", "wren", "zinc", "silk", "rain", "salt", "wool", "clay"], answer=2
)
OTHER = Question("Which one flies?", ["eel", "cat", "owl", "ant", "yak"], answer=2)


@pytest.fixture(scope="module", params=FAMILIES)
def lm(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> LanguageModel:
    return load_tiny(tmp_path_factory.mktemp(request.param), FAMILIES[request.param])


def ask(lm: LanguageModel, method: Method, *questions: Question) -> list[torch.Tensor]:
    plans = [method.plan(lm, question, seed=3) for question in questions]
    return [
        answer(plan, rows).probabilities
        for plan, rows in zip(plans, method.logits(lm, plans), strict=True)
    ]


def test_standard_and_self_ensemble_are_the_public_functions(lm: LanguageModel) -> None:
    (p,) = ask(lm, Method("x", "standard"), QUESTION)
    assert torch.equal(p, standard(lm, QUESTION).probabilities)
    (p,) = ask(lm, Method("x", "self-ensemble", 3, 4), QUESTION)
    assert torch.equal(p, self_ensemble(lm, QUESTION, 3, 4, seed=3).probabilities)
    (p,) = ask(lm, Method("x", "self-ensemble", 3, 4, "separate", null_option=False), QUESTION)
    expected = self_ensemble(lm, QUESTION, 3, 4, 3, "separate", null_option=False)
    assert torch.equal(p, expected.probabilities)


def test_questions_that_share_a_pass_get_the_answers_they_get_alone(lm: LanguageModel) -> None:
    for method in (Method("x", "standard"), Method("x", "self-ensemble", 2, 3)):
        together = ask(lm, method, QUESTION, OTHER)
        alone = [*ask(lm, method, QUESTION), *ask(lm, method, OTHER)]
        for a, b in zip(together, alone, strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=1e-10)


def test_methods_that_share_a_pass_get_the_answers_they_get_alone(lm: LanguageModel) -> None:
    methods = [Method(f"n{n}", "self-ensemble", 3, n, share="m3") for n in (1, 2, 5)]
    exact = Method("exact", "self-ensemble", 3, 0, grouping="exact", share="m3")
    plans = [method.plan(lm, OTHER, seed=3) for method in (*methods, exact)]
    for plan, rows in zip(plans, methods[0].logits(lm, plans), strict=True):
        alone = run(lm, plan, "separate").probabilities
        torch.testing.assert_close(answer(plan, rows).probabilities, alone, rtol=0, atol=1e-10)


def test_the_ablations_are_the_packed_run_that_verify_finds_different(lm: LanguageModel) -> None:
    """By how much, as `minise verify` says it: the largest difference of a label probability."""
    whole = Method("x", "self-ensemble", 3, 2, "dense")
    plan = whole.plan(lm, QUESTION, seed=3)
    report = verify(lm, plan)
    separate = [row.softmax(0) for row in whole.logits(lm, [plan])[0]]
    for kind in ("without-mask", "without-positions"):
        (rows,) = Method("x", kind, 3, 2).logits(lm, [plan])
        largest = max(
            float((row.softmax(0) - p).abs().max()) for row, p in zip(rows, separate, strict=True)
        )
        expected = report.ablations[kind.replace("-", "_")].probabilities
        assert largest == pytest.approx(expected, abs=1e-9)
        assert largest > 1e-3


def test_cyclic_is_the_mean_over_all_rotations_of_the_question(lm: LanguageModel) -> None:
    (p,) = ask(lm, Method("x", "cyclic"), OTHER)
    K = len(OTHER.choices)
    expected = torch.zeros(K, dtype=torch.float64)
    for start in range(K):
        order = [(start + i) % K for i in range(K)]
        turned = Question(OTHER.text, [OTHER.choices[i] for i in order])
        expected[order] += standard(lm, turned, engine="separate").probabilities / K
    torch.testing.assert_close(p, expected, rtol=0, atol=1e-10)


def test_over_each_k_rotations_every_choice_stands_once_under_every_label(
    lm: LanguageModel,
) -> None:
    groups = plan_rotations(lm, OTHER, 15, 0, PAPER).groups
    for block in (groups[:5], groups[5:10], groups[10:]):
        assert all(sorted(column) == [0, 1, 2, 3, 4] for column in zip(*block, strict=True))
    assert groups[0] == [0, 1, 2, 3, 4]
    assert groups[5:10] != groups[10:]


@pytest.mark.parametrize(("m", "trials"), [(4, 20), (2, 3), (8, 1)])
def test_matched_rotations_take_the_ensembles_tokens(
    lm: LanguageModel, m: int, trials: int
) -> None:
    def tokens(kind: str) -> int:
        method = Method("x", kind, m, trials)
        return method.tokens(method.plan(lm, QUESTION, 0))

    one = tokens("standard")
    assert abs(tokens("cyclic-matched") - tokens("self-ensemble")) <= one


def test_tokens_are_those_that_the_engine_runs(lm: LanguageModel) -> None:
    plan = Method("x", "self-ensemble", 3, 2).plan(lm, QUESTION, 0)
    counts = token_counts(plan.prompts.prefix, plan.prompts.branches)
    for engine, count in counts.items():
        assert Method("x", "self-ensemble", 3, 2, engine).tokens(plan) == count
    assert Method("x", "without-mask", 3, 2).tokens(plan) == counts["dense"]


def test_equal_prompts_are_run_once(lm: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def counted(lm, prefix, branches, engine, columns):
        asked.append(len(branches))
        return branch_logits(lm, prefix, branches, engine, columns)

    monkeypatch.setattr("minise.evaluation.methods.branch_logits", counted)
    few, many = (Method("x", "self-ensemble", 2, n, share="m2") for n in (2, 4))
    plans = [method.plan(lm, OTHER, 0) for method in (few, many)]
    few.logits(lm, plans)
    assert asked == [len({tuple(group) for group in plans[1].groups})]


def test_an_unknown_method_or_engine_is_named() -> None:
    with pytest.raises(InputError, match='"ensemble" is unknown; use one of standard'):
        Method("x", "ensemble")
    with pytest.raises(InputError, match='"fast" is unknown'):
        Method("x", "standard", engine="fast")


def test_every_method_says_what_it_is() -> None:
    assert all(METHODS.values())


def test_the_ablations_work_on_a_checkpoint_folder(tmp_path: Path) -> None:
    """In float32 too, the dtype of evaluations."""
    lm = load_tiny(tmp_path, FAMILIES["llama"], dtype=torch.float32)
    for kind in ("without-mask", "without-positions"):
        (p,) = ask(lm, Method("x", kind, 3, 2), QUESTION)
        assert float(p.sum()) == pytest.approx(1)
