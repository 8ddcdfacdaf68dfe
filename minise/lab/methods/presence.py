"""Presence: each choice alone against "None of the above"."""

from dataclasses import dataclass
from typing import ClassVar

from minise.method import GroupPlan, Method, SelfEnsemble
from minise.prompts import LanguageModel, Prompts
from minise.question import Question
from minise.template import DEFAULT_TEMPLATE, Template


@dataclass(frozen=True)
class Presence(Method):
    """Self-Ensemble with groups of one choice and one trial: each choice is asked once, alone,
    against "None of the above". K prompts.

    The score of a choice is the probability of its label against that of the null option: is the
    answer there or not? No list is read, and no choice is compared with another. What grouping
    gains beside this is the comparison.
    """

    name: ClassVar[str] = "presence"
    template: Template = DEFAULT_TEMPLATE

    def prompts(
        self, lm: LanguageModel, question: Question, seed: int = 0
    ) -> tuple[GroupPlan, Prompts]:
        one_by_one = SelfEnsemble(group_size=1, trials=1, template=self.template)
        return one_by_one.prompts(lm, question, seed)
