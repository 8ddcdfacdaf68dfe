"""Self-Ensemble (Section 3) and standard inference: what is asked, and what follows from it.

A method is two functions, with the model between them:

    plan, prompts = method.prompts(lm, question, seed)     lm's tokenizer makes the token ids
    logits = lm.logits(prompts)                            the labels' logits after each prompt
    answer = method.answer(plan, logits)

`ask`, the last function of this file, is these three lines. The plan is what `answer` has to
remember. It holds no prompt, no model and no engine. Of each prompt the logits are a `LabelLogits`
(lm.py): `labels`, the logits of its labels, and `total`, a number for the whole vocabulary.

    question -> groups -> prompts -> logits at each prompt's end -> group probabilities -> scores

Here the paper's method ends. Next to read is the model itself: config.py, rope.py, attention.py,
cache.py, model.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from minise.errors import InputError
from minise.grouping import (
    Grouping,
    Groups,
    check_at_least_one,
    check_sizes,
    random_partitions,
)
from minise.lm import LabelLogits, LanguageModel, Prompts, check_length
from minise.question import Question
from minise.template import DEFAULT_TEMPLATE, Template, write_prompts

Logits = Sequence[LabelLogits]  # one for each prompt


@dataclass(frozen=True)
class GroupPlan:
    """The groups of a question with K choices: a prompt each."""

    K: int
    groups: Groups


@dataclass(frozen=True, eq=False)
class Group:
    """The result of one group's prompt. `choices`: their indices in the order of the prompt.
    `probabilities`: (m,) float64, one for each choice. `null`: the probability of "None of the
    above", None where it was not in the softmax. `weight`: how much the group counts in the
    mean. `trial`: the number of its trial, from 0."""

    choices: tuple[int, ...]
    probabilities: Tensor
    null: float | None
    weight: float = 1.0
    trial: int = 0


@dataclass(frozen=True, eq=False)
class Answer:
    """probabilities: (K,) float64, sums to 1. scores: (K,) float64, the paper's Pr(op_i) of choice
    i, the mean (Eq. 2) over the groups in which it appears. prediction: the index of the largest
    score, the lower index on a tie. groups: the result of each prompt. on_labels: the share of
    probability that a prompt's labels have among the whole vocabulary, the mean over the prompts;
    None where no labels are read. notes: what an evaluation saves beside it, as JSON."""

    probabilities: Tensor
    scores: Tensor
    prediction: int
    groups: tuple[Group, ...] = field(repr=False)
    on_labels: float | None = None
    notes: dict[str, Any] = field(default_factory=dict, repr=False)


class Method:
    """A way to answer a question with a model. The fields of a dataclass are its settings.
    score_is: what the score of a choice is, as `minise ask` says it."""

    name: ClassVar[str]
    score_is: ClassVar[str] = "by this method"

    def prompts(self, lm: LanguageModel, question: Question, seed: int = 0) -> tuple[Any, Prompts]:
        """The prompts to run, and what `answer` needs to know of them. Raises InputError if the
        method cannot ask this question."""
        raise NotImplementedError

    def answer(self, plan: Any, logits: Logits) -> Answer:
        """The answer, from the logits after each prompt. Where the plan is a GroupPlan: the mean
        over the groups."""
        return mean_over_groups(plan, logits)


@dataclass(frozen=True)
class SelfEnsemble(Method):
    """The paper's method: N = `trials` times the choices are split into groups of m = `group_size`.
    `null_option`: each prompt's last option is "None of the above" (appendix on normalization), so
    that a group without the right choice need not give all probability to wrong ones."""

    name: ClassVar[str] = "self-ensemble"
    score_is: ClassVar[str] = "its mean probability in the prompts that list it"
    group_size: int = 4
    trials: int = 20
    grouping: Grouping = random_partitions
    null_option: bool = True
    template: Template = DEFAULT_TEMPLATE

    def __post_init__(self) -> None:
        check_at_least_one("group size", self.group_size)
        check_at_least_one("number of trials", self.trials)

    def prompts(
        self, lm: LanguageModel, question: Question, seed: int = 0
    ) -> tuple[GroupPlan, Prompts]:
        K = len(question.choices)
        check_sizes(K, self.group_size, self.trials)
        groups = self.grouping(K, self.group_size, self.trials, seed, question.id)
        return group_prompts(lm, question, self.template, groups, self.null_option)


@dataclass(frozen=True)
class Standard(Method):
    """One prompt with all K choices and no null option. `shuffled`: in an order that seed draws."""

    name: ClassVar[str] = "standard"
    template: Template = DEFAULT_TEMPLATE
    shuffled: bool = False

    def prompts(
        self, lm: LanguageModel, question: Question, seed: int = 0
    ) -> tuple[GroupPlan, Prompts]:
        K = len(question.choices)
        if self.shuffled:
            groups = random_partitions(K, K, 1, seed, question.id)
        else:
            groups = in_order(K)
        return group_prompts(lm, question, self.template, groups, null_option=False)


def in_order(K: int) -> Groups:
    """One group of all K choices, in the question's order."""
    everything = tuple(range(K))
    return Groups(((everything,),))


def group_prompts(
    lm: LanguageModel, question: Question, template: Template, groups: Groups, null_option: bool
) -> tuple[GroupPlan, Prompts]:
    """A prompt for each group (Section 3.2, step 2), with the null option as its last choice or
    without."""
    check_length(lm, question.text, question.choices)
    template = template.adapt(lm, question, groups.largest, null_option)
    choice_lists = []
    for group in groups.flat:
        texts = [question.choices[i] for i in group]
        if null_option:
            texts.append(template.null)
        choice_lists.append(texts)
    prompts = write_prompts(lm.tokenizer, template, question.text, choice_lists)
    return GroupPlan(len(question.choices), groups), prompts


def mean_over_groups(plan: GroupPlan, logits: Logits, dtype: torch.dtype = torch.float64) -> Answer:
    """Softmax over each group's labels (Section 4.3, the readout, Eq. 6), then the mean over the
    groups in which a choice appears (Section 3.2, step 3, the mean, Eq. 2). Both are computed in
    `dtype`."""
    groups = plan.groups
    weights = groups.weights or [1.0] * len(groups.flat)
    results = []
    shares = []
    for choices, weight, trial, prompt in zip(
        groups.flat, weights, groups.trial_numbers, logits, strict=True
    ):
        m = len(choices)
        probabilities = prompt.labels.to(dtype).softmax(dim=-1).double()
        has_null = len(probabilities) > m  # its label is the last
        null = float(probabilities[m]) if has_null else None
        results.append(Group(choices, probabilities[:m], null, weight, trial))
        shares.append(prompt.log_probabilities.logsumexp(dim=0).exp())
    return combine(plan.K, results, dtype, on_labels=float(torch.stack(shares).mean()))


def combine(
    K: int,
    groups: Sequence[Group],
    dtype: torch.dtype = torch.float64,
    on_labels: float | None = None,
) -> Answer:
    """The mean (Eq. 2): a choice's score is its weighted mean probability over the groups that hold
    it, 0 if none does. `probabilities`: the scores by their sum. InputError if that is 0."""
    sums = torch.zeros(K, dtype=dtype)
    sums_of_weights = torch.zeros(K, dtype=dtype)
    for group in groups:
        places = list(group.choices)
        sums[places] += (group.weight * group.probabilities).to(dtype)
        sums_of_weights[places] += group.weight
    # A choice of no group has the sum 0, divided by 1.
    sums_of_weights = torch.where(sums_of_weights > 0, sums_of_weights, 1.0)
    scores = (sums / sums_of_weights).double()
    if not scores.any():  # they have no largest, and no sum to divide by
        about = "the model gives None of the above all probability in every prompt"
        raise InputError(f"{about} of this question; leave the null option out")
    return answer_of(scores, groups, on_labels)


def answer_of(scores: Tensor, groups: Sequence[Group], on_labels: float | None = None) -> Answer:
    """The answer with these scores (K,)."""
    # The index of a list gives the first of equals; torch.argmax promises no order among ties.
    best = scores.tolist().index(max(scores.tolist()))
    return Answer(scores / scores.sum(), scores, best, tuple(groups), on_labels)


def ask(lm: LanguageModel, method: Method, question: Question, seed: int = 0) -> Answer:
    """The answer of a method to one question. Raises InputError as `prompts` and the model do."""
    plan, prompts = method.prompts(lm, question, seed)
    return method.answer(plan, lm.logits(prompts))
