"""Elimination, knockout and league against their definitions, computed by hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import permutations
from typing import Any

import pytest
import torch
from torch import Tensor

from minise import InputError, LanguageModel, Question
from minise import ask as ask_method
from minise.grouping import Groups
from minise.method import Answer, Plan
from minise.methods.build import build
from minise.methods.registry import Variant
from minise.methods.tournaments import Elimination, Knockout, League, round_robin
from minise.rounds import join, run_plan
from tests.methods.test_priors import FOUR, METALS, QUESTION, SIZES, close, log, of_choices
from tests.support.tiny import FAMILIES, load_tiny


@pytest.fixture(scope="module")
def lm(tmp_path_factory: pytest.TempPathFactory) -> LanguageModel:
    return load_tiny(tmp_path_factory.mktemp("llama"), FAMILIES["llama"])


def play(
    lm: LanguageModel,
    method: Any,
    question: Question,
    logits_of: Callable[[tuple[int, ...]], Tensor],
) -> tuple[Plan, Answer]:
    """All rounds of a method; each prompt has the logits `logits_of` its choices."""
    plan = method.plan(lm, question, 0)
    logits = [logits_of(group) for group in plan.groups.flat]
    while (following := method.more(lm, plan, logits, 0)) is not None:
        logits += [logits_of(group) for group in following.groups.flat]
        plan = join([plan, following])
    return plan, method.answer(plan, logits)


class TestElimination:
    FIRST = log(0.4, 0.35, 0.2, 0.05)

    def test_choices_below_the_mean_are_dropped_and_the_rest_asked_again(
        self, lm: LanguageModel
    ) -> None:
        """.2 and .05 are below .25. Of the .75 that are left, (.3, .7) are .225 and .525."""
        logits = {(0, 1, 2, 3): self.FIRST, (0, 1): log(0.3, 0.7)}
        plan, answer = play(lm, Elimination(), FOUR, logits.__getitem__)
        assert plan.prompts[1].text == "Which one flies?\n(A) eel\n(B) cat\nAnswer:"
        assert len(plan.prompts[1].label_ids) == 2
        close(answer, 0.225, 0.525, 0.2, 0.05)
        assert answer.scores.tolist() == pytest.approx(answer.probabilities.tolist())
        assert [group.choices for group in answer.groups] == [(0, 1, 2, 3), (0, 1)]

    def test_it_ends_with_one_choice_or_with_none_below_the_mean_or_after_the_last_round(
        self, lm: LanguageModel
    ) -> None:
        for row, p in ((log(0.7, 0.1, 0.1, 0.1), 0.7), (log(1, 1, 1, 1), 0.25)):
            plan, answer = play(lm, Elimination(rounds=9), FOUR, lambda _, row=row: row)
            assert len(plan.prompts) == 1
            assert float(answer.probabilities[0]) == pytest.approx(p)
        logits = {
            (0, 1, 2, 3): log(0.3, 0.3, 0.3, 0.1),
            (0, 1, 2): log(0.4, 0.2, 0.4),
            (0, 2): log(0.1, 0.9),
        }
        for rounds, prompts in ((1, 1), (2, 2), (3, 3), (9, 3)):
            plan, answer = play(lm, Elimination(rounds), FOUR, logits.__getitem__)
            assert len(plan.prompts) == prompts
        close(answer, 0.072, 0.18, 0.648, 0.1)

    def test_tokens_are_counted_over_all_rounds(self, lm: LanguageModel) -> None:
        method = Elimination()
        plan, _ = run_plan(lm, method, method.plan(lm, QUESTION, 0), 0)
        alone = method.plan(lm, QUESTION, 0).tokens("tree")
        assert len(plan.rounds) == 2
        assert plan.tokens("tree") == alone + plan.rounds[1].tokens("tree") > alone

    def test_zero_rounds_are_refused(self, lm: LanguageModel) -> None:
        with pytest.raises(InputError, match="rounds=0 is below 1; give 1 or more"):
            Elimination(rounds=0).plan(lm, FOUR, 0)


class TestKnockout:
    def test_winners_meet_and_the_matches_give_the_odds_of_all_choices(
        self, lm: LanguageModel
    ) -> None:
        """.75 : .25, .6 : .4, and .8 : .2 in the final. To the winner's 1 the others have 1/3,
        1/4 and 1/4 * 2/3."""
        method = Knockout(brackets=1)
        (a, b), (c, d) = method.plan(lm, FOUR, 0).groups.flat
        logits = {(a, b): log(0.75, 0.25), (c, d): log(0.6, 0.4), (a, c): log(0.8, 0.2)}
        plan, answer = play(lm, method, FOUR, logits.__getitem__)
        assert plan.groups.flat == [(a, b), (c, d), (a, c)]
        p = answer.probabilities
        expected = [x / 1.75 for x in (1, 1 / 3, 1 / 4, 1 / 6)]
        assert p[[a, b, c, d]].tolist() == pytest.approx(expected)
        assert answer.prediction == a

    @pytest.mark.parametrize("match", [2, 3, 4, 8])
    @pytest.mark.parametrize("K", [2, 5, 7, 8])
    def test_every_bracket_has_one_winner(self, lm: LanguageModel, K: int, match: int) -> None:
        """Every choice but one loses once, and does not play after that. Where the odds of two
        choices are the same in every group, the answer is the softmax of all (Luce's axiom)."""
        question = Question("Which?", METALS[:K], id=f"K{K}")
        strength = torch.tensor([0.3, 2.0, -1.0, 0.7, 1.9, -0.4, 0.0, 1.1][:K]).double()
        method = Knockout(match=match, brackets=3)
        plan, answer = play(lm, method, question, lambda group: strength[list(group)])
        torch.testing.assert_close(answer.probabilities, strength.softmax(0), rtol=0, atol=1e-12)
        for bracket in zip(*(one.groups.trials for one in plan.rounds or [plan]), strict=True):
            out: set[int] = set()
            for groups in bracket:
                for group in groups:
                    assert 2 <= len(group) <= match
                    assert not out.intersection(group)
                    out |= {*group} - {max(group, key=strength.tolist().__getitem__)}
            assert len(out) == K - 1
        assert len({one.groups.trials[0] for one in plan.rounds or [plan]}) == max(
            1, len(plan.rounds)
        )

    def test_the_answer_is_the_mean_over_brackets(self, lm: LanguageModel) -> None:
        whole, four = Knockout(brackets=4), QUESTION
        plan, logits = run_plan(lm, whole, whole.plan(lm, four, 3), 3)
        each = []
        for t in range(4):  # each bracket alone
            bracket = [
                (one.groups.trials[t], [row for row, k in zip(rows, where, strict=True) if k == t])
                for one, rows, where in split(plan, logits)
            ]
            trials = tuple(trial for trial, _ in bracket)
            rounds = tuple(
                replace(one, groups=Groups((trial,)))
                for one, trial in zip(plan.rounds, trials, strict=True)
            )
            alone = replace(plan, groups=Groups(trials), rounds=rounds)
            each.append(
                whole.answer(alone, [row for _, rows in bracket for row in rows]).probabilities
            )
        actual = whole.answer(plan, logits).probabilities
        torch.testing.assert_close(actual, torch.stack(each).mean(dim=0), rtol=0, atol=1e-12)

    def test_by_default_it_uses_about_as_many_tokens_as_the_ensemble(
        self, lm: LanguageModel
    ) -> None:
        many = Question("Which?", [f"the choice {i}" for i in range(16)])
        method = Knockout(**SIZES)
        plan, _ = run_plan(lm, method, method.plan(lm, many, 0), 0)
        budget = build(Variant("x", "self-ensemble", SIZES)).plan(lm, many, 0).tokens("tree")
        assert plan.tokens("tree") == sum(one.tokens("tree") for one in plan.rounds)
        assert 0.7 * budget < plan.tokens("tree") < 1.4 * budget

    @pytest.mark.parametrize(("K", "match"), [(7, 2), (8, 2), (7, 3), (8, 3)])
    def test_by_default_the_matches_of_all_rounds_share_the_tokens_of_the_ensemble(
        self, lm: LanguageModel, K: int, match: int
    ) -> None:
        """If one bracket has 3 of its 6 matches in the first round, that round gets half."""
        question, sizes = Question("Which?", METALS[:K]), {"group_size": 3, "trials": 12}
        played, _ = play(
            lm,
            Knockout(match=match, brackets=1),
            question,
            lambda group: torch.tensor(group).double(),
        )
        matches = [len(one.prompts) for one in played.rounds or (played,)]
        ensemble = build(Variant("x", "self-ensemble", sizes)).plan(lm, question, 0)
        budget = ensemble.tokens("tree") * matches[0] / sum(matches)
        first = Knockout(**sizes, match=match).plan(lm, question, 0)
        brackets = len(first.groups.trials)

        def distance(count: int) -> float:
            plan = Knockout(**sizes, match=match, brackets=count).plan(lm, question, 0)
            return abs(plan.tokens("tree") - budget)

        assert 1 < brackets < K * K
        assert distance(brackets) == min(distance(n) for n in range(1, brackets + 5))

    def test_unusable_sizes_are_refused_in_one_line(self, lm: LanguageModel) -> None:
        with pytest.raises(InputError, match="match=1 is below 2; give 2 choices or more"):
            Knockout(match=1).plan(lm, FOUR, 0)
        with pytest.raises(InputError, match="number of trials 0 is below 1"):
            Knockout(brackets=0).plan(lm, FOUR, 0)


def split(plan: Plan, logits: list[Tensor]) -> list[tuple[Plan, list[Tensor], list[int]]]:
    """Each round with its logits, and with the trial of each group."""
    parts, start = [], 0
    for one in plan.rounds:
        where = [t for t, trial in enumerate(one.groups.trials) for _ in trial]
        parts.append((one, logits[start : start + len(where)], where))
        start += len(where)
    return parts


class TestLeague:
    @pytest.mark.parametrize("K", [2, 3, 4, 5, 8])
    def test_every_pair_meets_once_and_each_choice_plays_once_per_round(self, K: int) -> None:
        rounds = round_robin(range(K))
        met = [frozenset(pair) for one in rounds for pair in one]
        assert len(met) == len(set(met)) == K * (K - 1) // 2
        for one in rounds:
            players = [i for pair in one for i in pair]
            assert len(players) == len(set(players)) == K - K % 2

    def test_it_asks_every_ordered_pair_without_a_null_option(self, lm: LanguageModel) -> None:
        plan = League().plan(lm, FOUR, 0)
        assert sorted(plan.groups.flat) == sorted(permutations(range(4), 2))
        assert "None of the above" not in plan.prompts[0].text
        assert {len(prompt.label_ids) for prompt in plan.prompts} == {2}

    def test_a_score_is_the_mean_of_its_probabilities(self) -> None:
        """Choice 0 wins by .9 and .6, choice 1 against 2 by .7: (1.5, .8, .7) / 2, of sum 1.5."""
        plan = of_choices(3, (0, 1), (0, 2), (1, 2))
        answer = League().answer(plan, [log(0.9, 0.1), log(0.6, 0.4), log(0.7, 0.3)])
        assert answer.scores.tolist() == pytest.approx([0.75, 0.4, 0.35])
        close(answer, 0.5, 4 / 15, 7 / 30)

    def test_the_answer_is_that_of_the_ensemble_of_all_ordered_pairs(
        self, lm: LanguageModel
    ) -> None:
        whole = {"group_size": 2, "null_option": False, "grouping": "exact"}
        expected = ask_method(lm, build(Variant("x", "self-ensemble", whole)), FOUR, 0)
        actual = ask_method(lm, League(), FOUR, 0).probabilities
        torch.testing.assert_close(actual, expected.probabilities, rtol=0, atol=1e-12)

    def test_a_matched_league_plays_the_rounds_nearest_to_the_budget(
        self, lm: LanguageModel
    ) -> None:
        many = Question("Which?", [f"the choice {i}" for i in range(16)])
        budget = build(Variant("x", "self-ensemble", SIZES)).plan(lm, many, 0).tokens("tree")
        plan = League(**SIZES, matched=True).plan(lm, many, 0)
        count = len(plan.groups.trials)
        assert 1 < count < 30
        whole = League().plan(lm, many, 0)
        assert whole.groups.trials[:count] == plan.groups.trials
        distance = [
            abs(replace(whole, prompts=whole.prompts[: 8 * n]).tokens("tree") - budget)
            for n in range(1, 31)
        ]
        assert min(distance) == distance[count - 1]
        few = League(**SIZES, matched=True).plan(lm, FOUR, 0)  # all of them take less
        assert len(few.prompts) == 12
