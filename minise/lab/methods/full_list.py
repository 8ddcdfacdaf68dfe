"""Debiasing by order: all choices in one prompt, in many random orders, and the mean over them."""

from dataclasses import dataclass
from typing import ClassVar

from minise.grouping import check_at_least_one, check_sizes, random_partitions
from minise.method import GroupPlan, Method, group_prompts
from minise.prompts import LanguageModel, Prompts
from minise.question import Question
from minise.template import DEFAULT_TEMPLATE, Template


@dataclass(frozen=True)
class FullList(Method):
    """The mean over `orders` random orders of the full list, each a prompt of its own. `null`: the
    last choice of each prompt is "None of the above".

    The orders are those of Self-Ensemble's trials before they are cut into groups. So with `null`
    and as many orders as trials, the two methods differ in the length of the lists alone.
    """

    name: ClassVar[str] = "full-list"
    orders: int = 20
    null: bool = False
    template: Template = DEFAULT_TEMPLATE

    def __post_init__(self) -> None:
        check_at_least_one("number of orders", self.orders)

    def prompts(
        self, lm: LanguageModel, question: Question, seed: int = 0
    ) -> tuple[GroupPlan, Prompts]:
        K = len(question.choices)
        check_sizes(K, K, self.orders)
        groups = random_partitions(K, K, self.orders, seed, question.id)
        return group_prompts(lm, question, self.template, groups, self.null)
