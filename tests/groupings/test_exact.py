"""All ordered groups give the limit of infinitely many trials."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations
from math import factorial

import pytest
import torch

from minise import (
    InputError,
    LanguageModel,
    Question,
    self_ensemble,
)
from minise.grouping import make_groups
from minise.method import combine


class TestExact:
    """Every ordered group, weighted: the limit of the mean (Eq. 2) for infinitely many trials."""

    @pytest.mark.parametrize("m", [1, 2, 3, 4, 5, 7])
    def test_it_is_the_mean_over_all_permutations(
        self, lm: LanguageModel, question: Question, m: int
    ) -> None:
        """Brute force: each of the 5! orders of the choices is one equally likely trial."""
        answer = self_ensemble(lm, question, group_size=m, grouping="exact")
        probabilities = {group.choices: group.probabilities for group in answer.groups}
        total = torch.zeros(5, dtype=torch.float64)
        for order in permutations(range(5)):
            for start in range(0, 5, m):
                group = order[start : start + m]
                total[list(group)] += probabilities[group]
        assert (answer.scores - total / factorial(5)).abs().max() <= 1e-12

    def test_sampled_scores_converge_to_it_as_one_over_the_root_of_n(
        self, lm: LanguageModel, question: Question
    ) -> None:
        exact = self_ensemble(lm, question, 2, grouping="exact")
        by_order = {group.choices: group for group in exact.groups}

        def error(trials: int) -> float:
            """Root mean square over seeds, from the group probabilities already computed."""
            squares = []
            for seed in range(60):
                groups = make_groups(5, 2, trials, seed, "convergence").flat
                sampled = combine(5, [replace(by_order[g], weight=1.0) for g in groups])
                squares.append((sampled.scores - exact.scores).square().mean())
            return float(torch.stack(squares).mean().sqrt())

        few, many = error(8), error(8 * 16)
        assert many > 0
        assert 3.0 < few / many < 5.2  # 4 = sqrt(16), within the noise of 60 seeds

    @pytest.mark.parametrize("engine", ["separate", "dense"])
    def test_every_engine_gives_the_same_answer(
        self, lm: LanguageModel, question: Question, engine: str
    ) -> None:
        tree = self_ensemble(lm, question, 2, grouping="exact")
        other = self_ensemble(lm, question, 2, grouping="exact", engine=engine)
        assert (tree.scores - other.scores).abs().max() <= 1e-12

    def test_the_number_of_trials_and_the_seed_have_no_effect(
        self, lm: LanguageModel, question: Question
    ) -> None:
        one = self_ensemble(lm, question, 2, trials=1, seed=1, grouping="exact")
        assert torch.equal(one.scores, self_ensemble(lm, question, 2, grouping="exact").scores)

    def test_too_many_groups_are_refused_at_once_with_their_number(self, lm: LanguageModel) -> None:
        many = Question("Q?", [f"choice {i}" for i in range(20)])
        with pytest.raises(InputError, match=r"has [\d,]{15,} ordered groups, over the limit of"):
            self_ensemble(lm, many, group_size=10, grouping="exact")
