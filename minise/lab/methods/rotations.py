"""Debiasing by order: all choices in one prompt, in K orders of it, and the mean over them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch

from minise.errors import check_name
from minise.grouping import Groups, random_partitions
from minise.method import (
    Answer,
    GroupPlan,
    Method,
    answer_of,
    group_prompts,
    in_order,
    mean_over_groups,
)
from minise.prompts import LabelLogits, LanguageModel, Prompts
from minise.question import Question
from minise.template import DEFAULT_TEMPLATE, Template

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

    def __post_init__(self) -> None:
        check_name("mean", self.mean, MEANS)

    def prompts(
        self, lm: LanguageModel, question: Question, seed: int = 0
    ) -> tuple[GroupPlan, Prompts]:
        K = len(question.choices)
        drawn = random_partitions(K, K, 1, seed, question.id)
        (order,) = drawn.flat if self.shuffled else in_order(K).flat
        rotations = []
        for first in range(K):
            rotation = order[first:] + order[:first]
            rotations.append((rotation,))
        return group_prompts(lm, question, self.template, Groups(tuple(rotations)), False)

    def answer(self, plan: GroupPlan, logits: Sequence[LabelLogits]) -> Answer:
        answer = mean_over_groups(plan, logits)
        if self.mean == "arithmetic":
            return answer
        log_p = torch.zeros(plan.K, dtype=torch.float64)
        for order, read in zip(plan.groups.flat, logits, strict=True):
            log_p[list(order)] += read.labels.log_softmax(dim=0) / plan.K
        return answer_of(log_p.softmax(dim=0), answer.groups, answer.on_labels)
