"""Debiasing by order: all choices in one prompt, in several orders, and the mean over them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from minise.engines import LanguageModel
from minise.grouping import Groups, random_partitions
from minise.method import Method, Plan, plan_groups
from minise.prompt import DEFAULT_TEMPLATE, Template
from minise.question import Question


@dataclass(frozen=True)
class Cyclic(Method):
    """The mean over all K rotations of the question's order, as prompts of standard inference. So
    every choice has every label once."""

    name: ClassVar[str] = "cyclic"
    template: Template = DEFAULT_TEMPLATE

    def plan(self, lm: LanguageModel, question: Question, seed: int = 0) -> Plan:
        order = tuple(range(len(question.choices)))
        orders = Groups(tuple((order[i:] + order[:i],) for i in order))
        return plan_groups(lm, question, self.template, orders, null_option=False)


@dataclass(frozen=True)
class Permutations(Method):
    """The mean over `count` random orders of all K choices. Unlike in `cyclic`, a choice may get
    some labels more often than others.

    p(i) = mean over orders I of p(label of i | the question in order I). Over all K! orders it is
    "full permutation" in Zheng et al. 2023 (arXiv 2309.03882), which at K = 8 is out of reach. Here
    orders are drawn from all K!, with replacement.
    """

    name: ClassVar[str] = "permutations"
    count: int = 8
    template: Template = DEFAULT_TEMPLATE

    def plan(self, lm: LanguageModel, question: Question, seed: int = 0) -> Plan:
        K = len(question.choices)
        orders = random_partitions(K, K, self.count, seed, f"{question.id}/permutations")
        return plan_groups(lm, question, self.template, orders, null_option=False)
