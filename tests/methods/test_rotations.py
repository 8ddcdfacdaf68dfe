"""The mean over rotations of a question, and how many tokens a plan takes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

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

    @pytest.mark.parametrize(("m", "trials"), [(4, 20), (2, 3), (8, 1)])
    def test_matched_rotations_use_about_as_many_tokens_as_the_ensemble(
        self, lm: LanguageModel, m: int, trials: int
    ) -> None:
        sizes = {"group_size": m, "trials": trials}
        tokens = {
            method: plan(lm, method, QUESTION, 0, **sizes).tokens("tree")
            for method in ("standard", "self-ensemble", "cyclic-matched")
        }
        distance = abs(tokens["cyclic-matched"] - tokens["self-ensemble"])
        assert distance <= tokens["standard"]

    def test_no_other_number_of_rotations_is_nearer_to_the_budget(self, lm: LanguageModel) -> None:
        budget = plan(lm, "self-ensemble", QUESTION, **SIZES).tokens("tree")
        matched = plan(lm, "cyclic-matched", QUESTION, **SIZES)
        count = len(matched.prompts)
        many = rotations(QUESTION, count + 1, 3)
        assert matched.groups.flat == many[:count]
        distance = abs(matched.tokens("tree") - budget)
        fewer = replace(matched, prompts=matched.prompts[:-1])
        assert distance <= abs(fewer.tokens("tree") - budget)


class TrunkOnly(LanguageModel):
    """A model that merges only what all prompts share, as the transformers library runs it."""

    def counted_as(self, engine: str) -> str:
        return "dense" if engine == "tree" else engine


class TestTokens:
    @pytest.mark.parametrize("method", ["cyclic-matched", "permutations", "league", "knockout"])
    def test_matching_counts_the_tokens_that_the_model_runs(
        self, lm: LanguageModel, method: str
    ) -> None:
        model = TrunkOnly(lm.name, lm.config, lm.decoder, lm.tokenizer)
        sizes: dict[str, Any] = {"group_size": 4, "trials": 20}
        if method == "league":  # it has 14 rounds only
            sizes |= {"trials": 9, "matched": True}
        budget = plan(
            model, "self-ensemble", QUESTION, group_size=4, trials=sizes["trials"]
        ).tokens("dense")
        if method == "knockout":  # of the 7 matches of a bracket, 4 are in its first round
            budget = round(budget * 4 / 7)
        matched, merged = (plan(one, method, QUESTION, **sizes) for one in (model, lm))
        trial = sum(map(len, matched.branches[: len(matched.groups.trials[0])]))
        assert abs(matched.tokens("dense") - budget) <= trial
        assert abs(merged.tokens("dense") - budget) > trial

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
