"""Debiasing by order: all choices in one prompt, in K orders of it, and the mean over them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from minise.checks import check_name
from minise.engines import LanguageModel
from minise.grouping import Groups
from minise.method import Answer, Group, Method, Plan, Standard, combine, plan_groups
from minise.prompt import DEFAULT_TEMPLATE, Template
from minise.question import Question

MEANS = ("arithmetic", "geometric")


@dataclass(frozen=True)
class Cyclic(Method):
    """The mean over all K rotations of the question's order, as prompts of standard inference. So
    every choice has every label once. `shuffled`: the rotations of an order that the seed draws.

    `mean`: "arithmetic", or "geometric": p(i) is proportional to the K-th root of the product of
    p_r(i) over the rotations r. There a prior of the labels divides out: the product of every
    choice has the prior of every label once.
    """

    name: ClassVar[str] = "cyclic"
    template: Template = DEFAULT_TEMPLATE
    shuffled: bool = False
    mean: str = "arithmetic"

    def plan(self, lm: LanguageModel, question: Question, seed: int = 0) -> Plan:
        check_name("mean of cyclic", self.mean, MEANS)
        (order,) = Standard(self.template, self.shuffled).plan(lm, question, seed).groups.flat
        orders = Groups(tuple((order[i:] + order[:i],) for i in range(len(order))))
        return plan_groups(lm, question, self.template, orders, null_option=False)

    def answer(self, plan: Plan, logits: Sequence[Tensor]) -> Answer:
        answer = super().answer(plan, logits)
        if self.mean == "arithmetic":
            return answer
        log_p = torch.zeros(len(plan.question.choices), dtype=torch.float64)
        for order, row in zip(plan.groups.flat, logits, strict=True):
            log_p[list(order)] += row.double().log_softmax(dim=-1) / len(order)
        group = Group(tuple(range(len(log_p))), log_p.softmax(dim=-1), None)
        return replace(combine(plan.question, [group]), groups=answer.groups)
