"""Debiasing by rotation: all choices in one prompt, in several orders, and the mean over them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import ClassVar

from minise.engines import LanguageModel
from minise.grouping import Group, make_groups
from minise.layout import pack
from minise.method import PAPER, Method, Plan, Preset, SelfEnsemble, plan_orders
from minise.question import Question


def rotations(question: Question, count: int, seed: int) -> list[Group]:
    """`count` orders of all K choices: first the K rotations of the question's order, then those of
    a random permutation, and so on. In each K rotations every choice has every label once."""
    K = len(question.choices)
    orders = [tuple(range(K))]
    if count > K:
        orders += make_groups(K, K, -(-count // K) - 1, seed, f"{question.id}/rotations").flat
    return [order[i:] + order[:i] for order in orders for i in range(K)][:count]


@dataclass(frozen=True)
class Cyclic(Method):
    """The mean over all K rotations, as prompts of standard inference."""

    name: ClassVar[str] = "cyclic"
    preset: Preset = PAPER

    def plan(self, lm: LanguageModel, question: Question, seed: int = 0) -> Plan:
        template = self.standard_template(lm)
        orders = rotations(question, len(question.choices), seed)
        return plan_orders(lm, question, template, orders)


class CyclicMatched(SelfEnsemble):
    """The mean over as many rotations as come nearest to the tokens of Self-Ensemble with these
    settings. A question of few choices may have too few distinct orders to reach them."""

    name: ClassVar[str] = "cyclic-matched"

    def orders(self, question: Question, count: int, seed: int) -> list[Group]:
        """The first `count` orders in which the question is asked."""
        return rotations(question, count, seed)

    def plan(self, lm: LanguageModel, question: Question, seed: int = 0) -> Plan:
        budget = super().plan(lm, question, seed).tokens(lm.counted_as("tree"))
        one = self.ordered(lm, question, 1, seed)
        # Rotations share tokens, so each further one is cheaper; twice as many are always enough.
        most = 2 * -(-budget // len(one.branches[0]))
        return nearest(lm, lambda count: self.ordered(lm, question, count, seed), most, budget)

    def ordered(self, lm: LanguageModel, question: Question, count: int, seed: int) -> Plan:
        """A prompt for each of `count` orders."""
        template = self.standard_template(lm)
        return plan_orders(lm, question, template, self.orders(question, count, seed))


@dataclass(frozen=True)
class Permutations(CyclicMatched):
    """The mean over `count` random orders of all K choices; by default as many as come nearest to
    Self-Ensemble's tokens. Unlike in `cyclic`, a choice may get some labels more often than others.

    p(i) = mean over orders I of p(label of i | the question in order I). Over all K! orders it is
    "full permutation" in Zheng et al. 2023 (arXiv 2309.03882), which at K = 8 is out of reach. Here
    orders are drawn from all K!, with replacement.
    """

    name: ClassVar[str] = "permutations"
    count: int | None = None

    def orders(self, question: Question, count: int, seed: int) -> list[Group]:
        K = len(question.choices)
        return make_groups(K, K, count, seed, f"{question.id}/permutations").flat

    def plan(self, lm: LanguageModel, question: Question, seed: int = 0) -> Plan:
        if self.count is None:
            return super().plan(lm, question, seed)
        return self.ordered(lm, question, self.count, seed)


def nearest(lm: LanguageModel, make: Callable[[int], Plan], most: int, budget: float) -> Plan:
    """`make(n)` gives a plan of n trials; a plan of fewer trials begins like one of more. Returns
    the plan with 1 to `most` trials whose tokens are nearest to `budget`, as the engine tree counts
    them."""
    count, engine = 1, lm.counted_as("tree")
    plan = make(count)
    while (tokens := plan.tokens(engine)) < budget and count < most:
        # As many as have the budget in proportion, and a quarter more, because later trials share
        # more tokens. To double from one trial would write two to four times as many prompts.
        count = min(max(2 * count, math.ceil(1.25 * count * budget / tokens)), most)
        plan = make(count)
    prompts = list(accumulate(len(trial) for trial in plan.groups.trials))
    so_far = tokens_so_far(plan, engine)
    distance = [abs(so_far[number - 1] - budget) for number in prompts]
    count = distance.index(min(distance)) + 1
    groups = replace(plan.groups, trials=plan.groups.trials[:count])
    return replace(plan, groups=groups, prompts=plan.prompts[: prompts[count - 1]])


def tokens_so_far(plan: Plan, engine: str) -> list[int]:
    """For each prompt of a plan how many tokens an engine runs for it and all prompts before it."""
    if plan.rounds:
        counts: list[int] = []
        before = 0  # tokens of earlier rounds
        for one in plan.rounds:
            counts += [before + tokens for tokens in tokens_so_far(one, engine)]
            before += one.tokens(engine)
        return counts
    if engine == "separate" and plan.layout is None:
        return list(accumulate(len(plan.prefix) + len(ids) for ids in plan.branches))
    layout = plan.layout or pack(plan.prefix, plan.branches, tree=engine == "tree")
    # Rows are numbered in the order in which they are added: so far there are as many as the
    # largest end, plus one.
    return [int(row) + 1 for row in layout.ends.cummax(0).values]
