"""Self-Ensemble (Sections 3 and 4) and standard inference: question -> plan -> logits -> answer.

    question -> groups -> prompts -> logits at each prompt's end -> group probabilities -> scores

The plan holds the groups and their prompts (Section 3.2, steps 1 and 2). The answer is the softmax
over each group's labels (Section 4.3, the readout, Eq. 6) and the mean over the groups (Section
3.2, step 3, Eq. 2). The engines compute the logits between the two.

Here the paper's method ends. Next to read is the model itself: config.py, rope.py, attention.py,
cache.py, model.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from minise.checks import check_length, check_prompts, check_scores, check_sizes
from minise.engines import LanguageModel, branch_logits, layout_ends, read_logits, token_counts
from minise.grouping import Grouping, Groups, random_partitions
from minise.layout import Layout
from minise.prompt import DEFAULT_TEMPLATE, NULL_OPTION, Prompt, Template, write_prompts
from minise.question import Question


@dataclass(frozen=True)
class Plan:
    """What the model will be asked for one question: its groups, and a prompt for each group. The
    token ids of a prompt are `prefix + prompt.ids`.

    layout: a layout that the method made itself, with one end for each prompt. It is run as it is,
    whatever the engine: the ablations do so. notes: facts that an evaluation saves, as JSON. model:
    the model's name, for messages."""

    question: Question
    groups: Groups
    prefix: list[int]
    prompts: list[Prompt]
    layout: Layout | None = None
    notes: dict[str, Any] = field(default_factory=dict)
    model: str = ""

    @property
    def branches(self) -> list[list[int]]:
        """Each prompt's ids after the prefix."""
        return [prompt.ids for prompt in self.prompts]

    def tokens(self, engine: str) -> int:
        """How many tokens the engine runs for this plan."""
        if self.layout is not None:
            return len(self.layout.tokens)
        return token_counts(self.prefix, self.branches)[engine]


@dataclass(frozen=True, eq=False)
class Group:
    """The result of one group's prompt. `choices`: their indices in the order of the prompt.
    `probabilities`: (m,) float64, one for each choice. `null`: the probability of "None of the
    above", None where it was not in the softmax. `weight`: how much the group counts in the
    mean."""

    choices: tuple[int, ...]
    probabilities: Tensor
    null: float | None
    weight: float = 1.0


@dataclass(frozen=True, eq=False)
class Answer:
    """probabilities: (K,) float64, sums to 1. scores: (K,) float64, the paper's Pr(op_i), the mean
    (Eq. 2) over the groups in which op_i appears. prediction: the index of the largest score, the
    lower index on a tie. groups: the result of each prompt."""

    probabilities: Tensor
    scores: Tensor
    prediction: int
    groups: tuple[Group, ...] = field(repr=False)


class Method:
    """A way to answer a question with a model: `plan` says which prompts to run, and `answer` turns
    their label logits into probabilities. The fields of a dataclass are its settings."""

    name: ClassVar[str]

    def plan(self, lm: LanguageModel, question: Question, seed: int = 0) -> Plan:
        """The prompts to run. Raises InputError if the method cannot ask this question."""
        raise NotImplementedError

    def answer(self, plan: Plan, logits: Sequence[Tensor]) -> Answer:
        """The answer, from the label logits of each prompt: softmax over each group's labels (the
        readout, Eq. 6), then the mean over the groups (Eq. 2), both in the logits' dtype."""
        weights = plan.groups.weights or [1.0] * len(plan.prompts)
        groups = []
        for choices, weight, row in zip(plan.groups.flat, weights, logits, strict=True):
            p, m = torch.softmax(row, dim=-1).double(), len(choices)
            null = float(p[m]) if len(p) > m else None  # its label is the last
            groups.append(Group(choices, p[:m], null, weight))
        return combine(plan.question, groups, logits[0].dtype, plan.model)


def combine(
    question: Question, groups: Sequence[Group], dtype: torch.dtype = torch.float64, model: str = ""
) -> Answer:
    """The mean (Eq. 2): a choice's score is its weighted mean probability over the groups that hold
    it, 0 if none does. `probabilities`: the scores by their sum. InputError if that is 0."""
    total, weights = torch.zeros(2, len(question.choices), dtype=dtype)
    for group in groups:
        total[list(group.choices)] += (group.weight * group.probabilities).to(dtype)
        weights[list(group.choices)] += group.weight
    scores = (total / torch.where(weights > 0, weights, 1.0)).double()
    check_scores(scores, question.text, model)
    # The index of a list gives the first of equals; torch.argmax promises no order among ties.
    prediction = scores.tolist().index(max(scores.tolist()))
    return Answer(scores / scores.sum(), scores, prediction, tuple(groups))


@dataclass(frozen=True)
class SelfEnsemble(Method):
    """The paper's method: N = `trials` times the choices are split into groups of m = `group_size`.
    `null_option`: each prompt's last option is "None of the above" (appendix on normalization), so
    that a group without the right choice need not give all probability to wrong ones."""

    name: ClassVar[str] = "self-ensemble"
    group_size: int = 4
    trials: int = 20
    grouping: Grouping = random_partitions
    null_option: bool = True
    template: Template = DEFAULT_TEMPLATE

    def plan(self, lm: LanguageModel, question: Question, seed: int = 0) -> Plan:
        sizes = len(question.choices), self.group_size, self.trials
        check_sizes(*sizes)
        groups = self.grouping(*sizes, seed, question.id)
        return plan_groups(lm, question, self.template, groups, self.null_option)


@dataclass(frozen=True)
class Standard(Method):
    """One prompt with all K choices and no null option. `shuffled`: in an order that seed draws."""

    name: ClassVar[str] = "standard"
    template: Template = DEFAULT_TEMPLATE
    shuffled: bool = False

    def plan(self, lm: LanguageModel, question: Question, seed: int = 0) -> Plan:
        K = len(question.choices)
        in_order = Groups(((tuple(range(K)),),))
        group = random_partitions(K, K, 1, seed, question.id) if self.shuffled else in_order
        return plan_groups(lm, question, self.template, group, null_option=False)


def plan_groups(
    lm: LanguageModel, question: Question, template: Template, groups: Groups, null_option: bool
) -> Plan:
    """A prompt for each group, with the null option as its last choice or without."""
    check_length(lm, question.text, question.choices)
    template = template.adapt(lm, question, max(map(len, groups.flat)), null_option)
    null = [NULL_OPTION] if null_option else []
    choice_lists = [[question.choices[i] for i in group] + null for group in groups.flat]
    prefix, prompts = write_prompts(lm.tokenizer, template, question.text, choice_lists)
    return Plan(question, groups, prefix, prompts, model=lm.name)


def label_logits(
    lm: LanguageModel, plan: Plan, engine: str = "tree", total: bool = False
) -> list[Tensor]:
    """Each prompt's label logits, float64 on the CPU, in the order of its choices; that of the null
    option is last. Only the logits of labels are computed, unless a prompt reads all. total: after
    them, the log of the sum of exp over the vocabulary; less that, they are log-probabilities."""
    read = [prompt.label_ids for prompt in plan.prompts]
    columns = None if None in read else sorted({i for ids in read for i in ids or ()})
    if plan.layout is None:
        logits = branch_logits(lm, plan.prefix, plan.branches, engine, columns, total)
    else:
        check_prompts(lm, plan.prefix, plan.branches, columns or ())
        logits = read_logits(lm, layout_ends(lm, plan.layout), columns, total)
    if columns is not None:
        place = {token_id: column for column, token_id in enumerate(columns)}
        read = [[place[i] for i in ids or ()] for ids in read]
    rows = zip(logits.cpu().double(), read, strict=True)
    return [row if ids is None else row[ids + [-1] * total] for row, ids in rows]


def ask(
    lm: LanguageModel, method: Method, question: Question, seed: int = 0, engine: str = "tree"
) -> Answer:
    """The answer of a method to one question. Raises InputError as `plan` and the engine do."""
    plan = method.plan(lm, question, seed)
    return method.answer(plan, label_logits(lm, plan, engine))
