"""Debiasing by order: all choices in one prompt, in K orders of it, and the mean over them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from minise.engines import LanguageModel
from minise.grouping import Groups
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
