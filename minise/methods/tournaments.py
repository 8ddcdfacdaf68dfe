"""Methods that ask about some of the choices at a time, and do not average over all: elimination,
knockout and league. None has a null option: each prompt is one of standard inference."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from minise.engines import LanguageModel
from minise.errors import InputError
from minise.grouping import Groups, Trial, make_groups, permutation
from minise.method import (
    PAPER,
    Answer,
    Group,
    Method,
    Plan,
    Preset,
    SelfEnsemble,
    Standard,
    combine,
    mean_answer,
    plan_orders,
)
from minise.methods.rotations import nearest
from minise.question import Question


@dataclass(frozen=True)
class Elimination(Method):
    """Process of elimination (Ma & Du 2023, arXiv 2310.15575): ask about all choices, drop those
    below the mean, ask again about the rest.

    The mean of the probabilities in a prompt of n choices is 1/n. The publication has two rounds;
    with more of them, `rounds`, dropping goes on until none is below the mean or one is left. It
    replaces a dropped choice by "[MASK]" and keeps the labels. Here the remaining choices are asked
    as a new question with labels from A: base models do not follow an instruction about masks.

    The publication gives only a prediction. Here is how a distribution is made: a dropped choice
    keeps its probability from the prompt that dropped it, and the others share the remaining
    probability in the proportions of the next prompt. So no probability is 0, and the prediction is
    still that of the last prompt.
    """

    name: ClassVar[str] = "elimination"
    rounds: int = 2
    preset: Preset = PAPER

    def plan(self, lm: LanguageModel, question: Question, seed: int = 0) -> Plan:
        if self.rounds < 1:
            raise InputError(f"elimination: rounds={self.rounds} is below 1; give 1 or more")
        return Standard(self.preset).plan(lm, question, seed)

    def more(
        self, lm: LanguageModel, plan: Plan, logits: Sequence[Tensor], seed: int
    ) -> Plan | None:
        """The next round: those choices of the last one that are not below its mean."""
        choices, p = plan.groups.flat[-1], logits[-1].softmax(dim=-1).tolist()
        rest = tuple(i for i, share in zip(choices, p, strict=True) if share >= 1 / len(p))
        if len(plan.prompts) >= self.rounds or not 1 < len(rest) < len(choices):
            return None
        template = self.standard_template(lm)
        return plan_orders(lm, plan.question, template, [rest])

    def answer(self, plan: Plan, logits: Sequence[Tensor]) -> Answer:
        K = len(plan.question.choices)
        p = torch.full((K,), 1 / K, dtype=torch.float64)
        for choices, row in zip(plan.groups.flat, logits, strict=True):
            p[list(choices)] = p[list(choices)].sum() * row.softmax(dim=-1)
        return _answer_with(p, plan, logits)


@dataclass(frozen=True)
class Knockout(SelfEnsemble):
    """A knockout: random groups of `match` choices, each group's most probable one goes on, and the
    winners meet again until one is left (Chen et al. 2024, arXiv 2411.19477, among answers that a
    model wrote). What grouping gives without averaging over groups.

    `brackets` such knockouts, each with a random order, are played side by side, and their mean is
    taken. By default there are as many as come nearest to Self-Ensemble's tokens. (The lengths of
    later prompts are not known at the start: they are assumed to be as long as those of the first
    round.) A choice without an opponent goes on.

    No publication gives a distribution. By Luce's choice axiom the odds of two choices are the same
    in every group, so the matches of a bracket give all odds: the winner has strength 1, and one
    that lost to w has s = s_w * p / p_w in their match; p is s over its sum. With one match of all
    K choices this is the softmax of standard inference.
    """

    name: ClassVar[str] = "knockout"
    match: int = 2
    brackets: int | None = None

    def plan(self, lm: LanguageModel, question: Question, seed: int = 0) -> Plan:
        if self.match < 2:
            raise InputError(f"knockout: match={self.match} is below 2; give 2 choices or more")
        K, m, key = len(question.choices), self.match, f"{question.id}/knockout"

        def first(count: int) -> Plan:
            orders = make_groups(K, K, count, seed, key).flat
            return self._round(lm, question, [list(order) for order in orders])

        if self.brackets is not None:
            return first(self.brackets)
        matches: list[int] = []  # how many each round of one bracket has
        remaining = K
        while remaining > 1:
            matches.append(remaining // m + (remaining % m > 1))
            remaining = -(-remaining // m)
        budget = super().plan(lm, question, seed).tokens(lm.counted_as("tree"))
        # In K * K brackets nearly all groups have met; the same prompt again costs nothing.
        return nearest(lm, first, K * K, budget * matches[0] / sum(matches))

    def more(
        self, lm: LanguageModel, plan: Plan, logits: Sequence[Tensor], seed: int
    ) -> Plan | None:
        """The next round of every bracket."""
        remaining: list[list[int]] = []  # the choices of each bracket
        for trials in zip(*_rounds(plan), strict=True):
            matched = [i for group in trials[0] for i in group]
            alone = [i for i in range(len(plan.question.choices)) if i not in matched]
            remaining.append(matched + alone)
        for bracket, group, row in _matches(plan, logits):
            winner = group[int(row.argmax())]
            remaining[bracket] = [i for i in remaining[bracket] if i == winner or i not in group]
        return self._round(lm, plan.question, remaining) if len(remaining[0]) > 1 else None

    def answer(self, plan: Plan, logits: Sequence[Tensor]) -> Answer:
        matches = _matches(plan, logits)
        brackets = 1 + max(bracket for bracket, *_ in matches)
        strength = torch.ones(brackets, len(plan.question.choices)).double()
        for bracket, group, row in reversed(matches):
            odds = torch.exp(row - row.max())
            winner = group[int(row.argmax())]
            strength[bracket, list(group)] = strength[bracket, winner] * odds
        p = (strength / strength.sum(dim=1, keepdim=True)).mean(dim=0)
        return _answer_with(p, plan, logits)

    def _round(self, lm: LanguageModel, question: Question, remaining: list[list[int]]) -> Plan:
        """One round of all brackets, with the remaining choices of each; a trial is a bracket."""
        m = self.match
        trials = []
        for choices in remaining:
            groups = [tuple(choices[i : i + m]) for i in range(0, len(choices), m)]
            trials.append(tuple(group for group in groups if len(group) > 1))
        return _meetings(self, lm, question, trials)


def _rounds(plan: Plan) -> list[tuple[Trial, ...]]:
    """The trials of each round."""
    return [one.groups.trials for one in plan.rounds or (plan,)]


def _matches(plan: Plan, logits: Sequence[Tensor]) -> list[tuple[int, tuple[int, ...], Tensor]]:
    """Each match in the order played: its bracket, its choices and their logits."""
    matches = []
    rows = iter(logits)
    for trials in _rounds(plan):
        for bracket, trial in enumerate(trials):
            for group in trial:
                matches.append((bracket, group, next(rows)))
    return matches


@dataclass(frozen=True)
class League(SelfEnsemble):
    """A league: every two choices meet twice, once in each order, and a choice's score is the mean
    of its probabilities (Liusie et al. 2023, arXiv 2307.07889, "average probability" over symmetric
    comparisons; Chen et al. 2024, arXiv 2411.19477, count wins). It is Self-Ensemble with groups of
    two and no null option, with all ordered pairs instead of random ones: averaging without the
    null option.

    K (K - 1) prompts. With `matched` only so many rounds, in each of which every choice meets one
    other, as come nearest to Self-Ensemble's tokens. If K is odd, one choice rests in a round.
    """

    name: ClassVar[str] = "league"
    matched: bool = False

    def plan(self, lm: LanguageModel, question: Question, seed: int = 0) -> Plan:
        rounds = round_robin(permutation(len(question.choices), f"{seed}/{question.id}/league"))
        rounds += [tuple((b, a) for a, b in pairs) for pairs in rounds]
        if not self.matched:
            return _meetings(self, lm, question, rounds)
        budget = super().plan(lm, question, seed).tokens(lm.counted_as("tree"))
        return nearest(lm, lambda n: _meetings(self, lm, question, rounds[:n]), len(rounds), budget)


def round_robin(order: Sequence[int]) -> list[Trial]:
    """Rounds in which every two items meet once, by the circle method: the first stays, the others
    move on by one. Which item is first in a pair alternates.

    >>> round_robin([0, 1, 2, 3])
    [((0, 3), (2, 1)), ((2, 0), (3, 1)), ((0, 1), (3, 2))]
    """
    ring = [*order, *([-1] if len(order) % 2 else [])]  # -1: rests
    rounds = []
    for number in range(len(ring) - 1):
        pairs = [(ring[i], ring[-1 - i]) for i in range(len(ring) // 2)]
        turned = [pair[:: 1 if (number + i) % 2 == 0 else -1] for i, pair in enumerate(pairs)]
        rounds.append(tuple(pair for pair in turned if -1 not in pair))
        ring = [ring[0], ring[-1], *ring[1:-1]]
    return rounds


def _meetings(
    method: SelfEnsemble, lm: LanguageModel, question: Question, trials: Sequence[Trial]
) -> Plan:
    """A prompt without null option for each group of these trials."""
    groups = Groups(tuple(trials))
    plan = plan_orders(lm, question, method.standard_template(lm), groups.flat)
    return replace(plan, groups=groups)


def _answer_with(p: Tensor, plan: Plan, logits: Sequence[Tensor]) -> Answer:
    """The answer with the probabilities p (K,); its groups are the results of the prompts."""
    answer = combine(len(p), [Group(tuple(range(len(p))), p, None)])
    return replace(answer, groups=mean_answer(plan, logits).groups)
