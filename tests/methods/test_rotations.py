"""The mean over rotations of a question, and how many tokens a plan takes."""

from __future__ import annotations

import pytest
import torch

from minise import LanguageModel, Question, standard
from minise.engines import token_counts
from minise.layout import pack
from minise.methods.rotations import rotations, tokens_so_far
from minise.names import ENGINES
from tests.support.methods import OTHER, QUESTION, SIZES, ask, plan


class TestRotations:
    def test_cyclic_gives_the_mean_over_all_rotations_of_the_question(
        self, lm: LanguageModel
    ) -> None:
        p = ask(lm, "cyclic", OTHER)
        K = len(OTHER.choices)
        expected = torch.zeros(K, dtype=torch.float64)
        for start in range(K):
            order = [(start + i) % K for i in range(K)]
            turned = Question(OTHER.text, [OTHER.choices[i] for i in order])
            expected[order] += standard(lm, turned, engine="separate").probabilities / K
        torch.testing.assert_close(p, expected, rtol=0, atol=1e-10)

    def test_in_every_k_rotations_each_choice_has_every_label_once(self) -> None:
        groups = rotations(OTHER, 15, 0)
        for block in (groups[:5], groups[5:10], groups[10:]):
            assert all(sorted(column) == [0, 1, 2, 3, 4] for column in zip(*block, strict=True))
        assert groups[0] == (0, 1, 2, 3, 4)
        assert groups[5:10] != groups[10:]


class TestTokens:
    def test_a_plan_counts_the_tokens_that_the_engine_runs(self, lm: LanguageModel) -> None:
        whole = plan(lm, "self-ensemble", QUESTION, **SIZES)
        counts = token_counts(whole.prefix, whole.branches)
        assert {engine: whole.tokens(engine) for engine in ENGINES} == counts
        for method in ("without-mask", "without-positions"):
            ablated = plan(lm, method, QUESTION, **SIZES)
            assert {ablated.tokens(engine) for engine in ENGINES} == {counts["dense"]}

    @pytest.mark.parametrize("engine", ENGINES)
    def test_running_counts_are_those_of_the_prompts_up_to_each_group(
        self, lm: LanguageModel, engine: str
    ) -> None:
        whole = plan(lm, "self-ensemble", QUESTION, group_size=2, trials=5)
        expected = [
            token_counts(whole.prefix, whole.branches[:count])[engine]
            for count in range(1, len(whole.prompts) + 1)
        ]
        assert tokens_so_far(whole, engine) == expected

    def test_running_counts_of_a_plan_with_a_layout_are_those_of_the_layout(
        self, lm: LanguageModel
    ) -> None:
        ablated = plan(lm, "without-mask", QUESTION, **SIZES)
        packed = pack(ablated.prefix, ablated.branches)
        assert tokens_so_far(ablated, "separate") == [int(end) + 1 for end in packed.ends]
