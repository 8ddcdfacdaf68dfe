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
    writes "[MASK]" in the place of a dropped choice and keeps the labels. Here the rest is asked
    as a question of its own with labels from A: base models know no instruction about masks.

    The publication gives a prediction. As a distribution: a dropped choice keeps its probability
    from the prompt that dropped it, and the rest share what is left as the next prompt says. So no
    probability is 0, and the prediction is still the last prompt's.
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
        asked, p = plan.groups.flat[-1], logits[-1].softmax(dim=-1).tolist()
        rest = tuple(i for i, share in zip(asked, p, strict=True) if share >= 1 / len(p))
        if len(plan.prompts) >= self.rounds or not 1 < len(rest) < len(asked):
            return None
        template = self.standard_template(lm)
        return plan_orders(lm, plan.question, template, [rest])

    def answer(self, plan: Plan, logits: Sequence[Tensor]) -> Answer:
        K = len(plan.question.choices)
        p = torch.full((K,), 1 / K, dtype=torch.float64)
        for choices, row in zip(plan.groups.flat, logits, strict=True):
            p[list(choices)] = p[list(choices)].sum() * row.softmax(dim=-1)
        return _told(p, plan, logits)


@dataclass(frozen=True)
class Knockout(SelfEnsemble):
    """A knockout: random groups of `match` choices, each group's most probable one goes on, and the
    winners meet again until one is left. What grouping gives without averaging over groups.

    `brackets` such knockouts, each of a random order, are played side by side, and their mean is
    taken; by default as many as come nearest to Self-Ensemble's tokens. (How long later prompts
    are is not known before: they are taken to be as long as those of the first round.) A choice
    without an opponent goes on.

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
        matches, left = list[int](), K  # of a bracket, round by round
        while left > 1:
            matches.append(left // m + (left % m > 1))
            left = -(-left // m)
        budget = super().plan(lm, question, seed).tokens(lm.counted_as("tree"))
        # In K * K brackets nearly all groups have met; what was asked already costs nothing again.
        return nearest(lm, first, K * K, budget * matches[0] / sum(matches))

    def more(
        self, lm: LanguageModel, plan: Plan, logits: Sequence[Tensor], seed: int
    ) -> Plan | None:
        """The next round of every bracket."""
        left: list[list[int]] = []
        for bracket in zip(*_rounds(plan), strict=True):
            first = [i for group in bracket[0] for i in group]
            alone = [i for i in range(len(plan.question.choices)) if i not in first]
            left.append(first + alone)
        for t, group, row in _matches(plan, logits):
            winner = group[int(row.argmax())]
            left[t] = [i for i in left[t] if i == winner or i not in group]
        return self._round(lm, plan.question, left) if len(left[0]) > 1 else None

    def answer(self, plan: Plan, logits: Sequence[Tensor]) -> Answer:
        played = _matches(plan, logits)
        strength = torch.ones(1 + max(t for t, *_ in played), len(plan.question.choices)).double()
        for t, group, row in reversed(played):
            odds = torch.exp(row - row.max())
            strength[t, list(group)] = strength[t, group[int(row.argmax())]] * odds
        return _told((strength / strength.sum(dim=1, keepdim=True)).mean(dim=0), plan, logits)

    def _round(self, lm: LanguageModel, question: Question, left: list[list[int]]) -> Plan:
        """A round of each bracket, of the choices that are left in it; a trial is a bracket."""
        m = self.match
        cut = [[tuple(one[i : i + m]) for i in range(0, len(one), m)] for one in left]
        trials = [tuple(group for group in each if len(group) > 1) for each in cut]
        return _meetings(self, lm, question, trials)


def _rounds(plan: Plan) -> list[tuple[Trial, ...]]:
    """The trials of each round."""
    return [one.groups.trials for one in plan.rounds or (plan,)]


def _matches(plan: Plan, logits: Sequence[Tensor]) -> list[tuple[int, tuple[int, ...], Tensor]]:
    """Each match in the order played: its bracket, its choices and their logits."""
    each = [(t, group) for one in _rounds(plan) for t, trial in enumerate(one) for group in trial]
    return [(t, group, row) for (t, group), row in zip(each, logits, strict=True)]


@dataclass(frozen=True)
class League(SelfEnsemble):
    """A league: every two choices meet twice, once in each order, and a choice's score is the mean
    of its probabilities (Liusie et al. 2023, arXiv 2307.07889, "average probability" over
    symmetric comparisons). It is Self-Ensemble with groups of two and no null option, with every
    ordered pair in place of random ones: what averaging gives without the null option.

    K (K - 1) prompts. With `matched` only so many rounds, in each of which every choice meets one
    other, as come nearest to Self-Ensemble's tokens. If K is odd, one choice rests in a round.
    """

    name: ClassVar[str] = "league"
    matched: bool = False

    def plan(self, lm: LanguageModel, question: Question, seed: int = 0) -> Plan:
        rounds = round_robin(permutation(len(question.choices), f"{seed}/{question.id}/league"))
        rounds += [tuple((b, a) for a, b in one) for one in rounds]
        if not self.matched:
            return _meetings(self, lm, question, rounds)
        budget = super().plan(lm, question, seed).tokens(lm.counted_as("tree"))
        return nearest(lm, lambda n: _meetings(self, lm, question, rounds[:n]), len(rounds), budget)


def round_robin(order: Sequence[int]) -> list[Trial]:
    """Rounds in which every two items meet once, by the circle method: the first stays, the others
    move on by one. Who stands first in a pair alternates.

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
    template = method.standard_template(lm)
    plan = plan_orders(lm, question, template, [group for trial in trials for group in trial])
    return replace(plan, groups=Groups(tuple(trials)))


def _told(p: Tensor, plan: Plan, logits: Sequence[Tensor]) -> Answer:
    """The answer with these probabilities, and beside it what each prompt said."""
    whole = combine(len(p), [Group(tuple(range(len(p))), p, None)])
    return replace(whole, groups=mean_answer(plan, logits).groups)
