"""The standard errors of an answer's scores."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from minise import (
    LanguageModel,
    Question,
    SelfEnsemble,
    Standard,
    self_ensemble,
    standard,
)
from minise.groupings.registry import grouping_named
from minise.method import combine, label_logits
from minise.methods.uncertainty import Uncertainty, student_quantile, uncertainty


class TestUncertainty:
    """How far the scores may be from those of infinitely many trials."""

    def ask(
        self, lm: LanguageModel, question: Question, trials: int, seed: int = 0, **options: Any
    ) -> Uncertainty:
        if "grouping" in options:
            options["grouping"] = grouping_named(options["grouping"])
        method = SelfEnsemble(2, trials, **options)
        plan = method.plan(lm, question, seed)
        return uncertainty(plan.groups, method.answer(plan, label_logits(lm, plan)))

    def test_standard_errors_are_the_spread_of_single_trials(
        self, lm: LanguageModel, question: Question
    ) -> None:
        N, K = 12, len(question.choices)
        answer = self.ask(lm, question, N)
        whole = self_ensemble(lm, question, 2, N)
        per_trial = len(whole.groups) // N
        single = torch.stack(
            [combine(K, whole.groups[t * per_trial : (t + 1) * per_trial]).scores for t in range(N)]
        )
        assert answer.standard_errors is not None
        torch.testing.assert_close(answer.standard_errors, single.std(dim=0) / N**0.5)
        first, second = whole.scores.argsort(descending=True)[:2]
        gaps = single[:, first] - single[:, second]
        assert answer.lead == pytest.approx(float(gaps.mean()))
        assert answer.lead_error == pytest.approx(float(gaps.std() / N**0.5))
        assert answer.lead_interval is not None
        reach = 2.20099 * answer.lead_error  # Student's t with 11 degrees of freedom
        expected = (answer.lead - reach, answer.lead + reach)
        assert answer.lead_interval == pytest.approx(expected, rel=1e-4)

    def test_two_trials_are_enough(self, lm: LanguageModel, question: Question) -> None:
        answer = self.ask(lm, question, 2)
        assert answer.standard_errors is not None
        assert answer.lead_error is not None

    def test_standard_errors_measure_the_distance_to_the_exact_expectation(
        self, lm: LanguageModel, question: Question
    ) -> None:
        """Over many seeds, the squared distance in standard errors is about 1."""
        exact = self_ensemble(lm, question, 2, grouping="exact").scores
        squared = []
        for seed in range(40):
            scores = self_ensemble(lm, question, 2, 30, seed).scores
            errors = self.ask(lm, question, 30, seed).standard_errors
            assert errors is not None
            squared.append(((scores - exact) / errors) ** 2)
        assert 0.6 < float(torch.stack(squared).mean()) < 2

    def test_methods_without_sampling_have_standard_errors_of_zero(
        self, lm: LanguageModel, question: Question
    ) -> None:
        answer = self.ask(lm, question, 1, grouping="exact")
        assert answer.standard_errors is not None
        torch.testing.assert_close(answer.standard_errors, torch.zeros(5, dtype=torch.float64))
        assert answer.lead_error == 0
        plan = Standard().plan(lm, question)
        assert uncertainty(plan.groups, standard(lm, question)).lead_error == 0

    @pytest.mark.parametrize(
        ("trials", "options"),
        [(1, {}), (6, {"grouping": "balanced"}), (6, {"grouping": "independent"})],
    )
    def test_there_are_no_standard_errors_where_trials_cannot_give_them(
        self, lm: LanguageModel, question: Question, trials: int, options: dict[str, Any]
    ) -> None:
        answer = self.ask(lm, question, trials, **options)
        assert answer.standard_errors is None
        assert answer.lead_error is None
        assert answer.lead >= 0


@pytest.mark.parametrize(
    ("freedom", "quantile", "within"),
    [(1, 12.7062, 0.12), (2, 4.30265, 0.02), (4, 2.77645, 0.002), (9, 2.26216, 1e-4)],
)
def test_the_quantile_of_students_t_is_that_of_its_tables(
    freedom: int, quantile: float, within: float
) -> None:
    assert student_quantile(freedom) == pytest.approx(quantile, rel=within)


def test_the_quantile_of_students_t_is_that_of_scipy() -> None:
    stats = pytest.importorskip("scipy.stats")
    for freedom in (8, 19, 79):
        for share in (0.9, 0.975, 0.995):
            expected = float(stats.t.ppf(share, freedom))
            assert student_quantile(freedom, share) == pytest.approx(expected, rel=2e-4)


def test_the_quantiles_error_falls_with_the_fifth_power_of_the_degrees_of_freedom() -> None:
    """So it does if all four terms of the expansion are right."""
    stats = pytest.importorskip("scipy.stats")
    for share in (0.9, 0.975):
        scaled = [
            (student_quantile(n, share) - float(stats.t.ppf(share, n))) * n**5 for n in (40, 80)
        ]
        assert scaled[0] == pytest.approx(scaled[1], rel=0.03)
