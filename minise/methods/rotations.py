"""Debiasing by rotation: all choices in one prompt, in several orders, and the mean over them."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import ClassVar

from minise.engines import LanguageModel
from minise.grouping import Group, make_groups
from minise.layout import pack
from minise.method import PAPER, Method, Plan, Preset, plan_orders
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


@dataclass(frozen=True)
class Permutations(Method):
    """The mean over `count` random orders of all K choices; by default K orders. Unlike in
    `cyclic`, a choice may get some labels more often than others.

    p(i) = mean over orders I of p(label of i | the question in order I). Over all K! orders it is
    "full permutation" in Zheng et al. 2023 (arXiv 2309.03882), which at K = 8 is out of reach. Here
    orders are drawn from all K!, with replacement.
    """

    name: ClassVar[str] = "permutations"
    count: int | None = None
    preset: Preset = PAPER

    def plan(self, lm: LanguageModel, question: Question, seed: int = 0) -> Plan:
        K = len(question.choices)
        count = K if self.count is None else self.count
        orders = make_groups(K, K, count, seed, f"{question.id}/permutations").flat
        return plan_orders(lm, question, self.standard_template(lm), orders)


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
