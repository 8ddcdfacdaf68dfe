"""Self-Ensemble and standard inference (Sections 3 and 4) as methods: plan -> logits -> answer.

question -> groups -> prompts -> logits at each prompt's end -> group probabilities -> scores
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from minise.engines import (
    LanguageModel,
    branch_logits,
    check_fit,
    check_length,
    layout_logits,
    token_counts,
)
from minise.errors import InputError
from minise.grouping import Grouping, Groups, make_groups, random_partitions
from minise.layout import Layout
from minise.prompt import (
    DEFAULT_TEMPLATE,
    NULL_OPTION,
    Prompt,
    Template,
    check_labels,
    write_prompts,
)
from minise.question import Question

OnText = Callable[[int, str], None]  # gets a prompt's number and the next piece of its text


@dataclass(frozen=True)
class Preset:
    """Everything that group size, number of trials and seed leave open. The defaults are the
    paper's. Each departure is one field, so `dataclasses.replace` switches it alone."""

    grouping: Grouping = random_partitions
    groups_per_question: bool = True
    """Draw other groups for each question. False: every question gets the same index sets."""
    null_option: bool = True
    """Write "None of the above" as each group's last choice (appendix on normalization)."""
    null_in_softmax: bool = True
    """Count its label in the group's softmax, where it is written."""
    template: Template = DEFAULT_TEMPLATE
    """How a group's prompt is written."""
    standard_template: Template = DEFAULT_TEMPLATE
    """How the prompt of standard inference, with all K choices, is written."""
    last_group_early: int = 0
    """Read the last group this many tokens before its end."""
    dtype: str = "float64"
    """In which dtype each group's softmax and the mean over the groups are taken."""

    def of(self, model_type: str) -> Preset:
        """The preset for this family of models: of the paper's the same for all."""
        return self


PAPER = Preset()


@dataclass(frozen=True, eq=False)
class Group:
    """What one group's prompt said. `choices`: their indices in the order listed. `probabilities`:
    (m,) float64 over them. `null`: the probability of "None of the above", None where it had no
    part. `weight`: how much the group counts in the mean; all the same where groups are sampled."""

    choices: tuple[int, ...]
    probabilities: Tensor
    null: float | None
    weight: float = 1.0

    def __repr__(self) -> str:
        said = [round(p, 3) for p in self.probabilities.tolist()]
        null = None if self.null is None else round(self.null, 3)
        return f"Group(choices={self.choices}, probabilities={said}, null={null})"


@dataclass(frozen=True, eq=False)
class Answer:
    """probabilities: (K,) float64, sums to 1. scores: (K,) float64, the paper's Pr(op_i), the mean
    (Eq. 2) over the groups in which op_i appears. prediction: the index of the largest, the lower
    one on a tie. groups: what each prompt said."""

    probabilities: Tensor
    scores: Tensor
    prediction: int
    groups: tuple[Group, ...]

    def __repr__(self) -> str:
        said = [round(p, 3) for p in self.probabilities.tolist()]
        told = f"prediction={self.prediction}, probabilities={said}"
        return f"Answer({told}, groups={len(self.groups)})"


@dataclass(frozen=True)
class Plan:
    """What will be asked of the model for one question: its groups, and a prompt for each as token
    ids `prefix + prompt.ids`. `layout`: one of the method's own, whose ends are the prompts'. It is
    then run as it is, whatever the engine: an ablation is such a method. `rounds`: the plans of
    which it was joined, asked one after the other; none: it is one round. `dtype`: in which softmax
    and mean are taken."""

    question: Question
    groups: Groups
    prefix: list[int]
    prompts: list[Prompt]
    layout: Layout | None = None
    rounds: tuple[Plan, ...] = ()
    dtype: str = "float64"

    @property
    def branches(self) -> list[list[int]]:
        """Each prompt's ids after the prefix."""
        return [prompt.ids for prompt in self.prompts]

    def tokens(self, engine: str) -> int:
        """How many tokens are run for it."""
        if self.rounds:
            return sum(one.tokens(engine) for one in self.rounds)
        if self.layout is not None:
            return len(self.layout.tokens)
        return token_counts(self.prefix, self.branches)[engine]


class Method:
    """How a question is asked, and what is made of the logits. Between the two lies one forward
    pass, the same for every method.

    A method has a `name` and a `plan`; everything else has a default. If it is a dataclass, its
    fields are its settings.
    """

    name: ClassVar[str]
    preset: Preset = PAPER
    max_new_tokens: int = 0  # that `write` may let the model write

    def check(self, questions: Sequence[tuple[int, Question]]) -> None:
        """Raise InputError for questions, with their seeds, that it cannot be asked."""

    def plan(self, lm: LanguageModel, question: Question, seed: int = 0) -> Plan:
        """What is asked first."""
        raise NotImplementedError

    def write(
        self, lm: LanguageModel, plan: Plan, seed: int = 0, on_text: OnText | None = None
    ) -> Plan:
        """The plan with what the model writes before it is asked. Only if `max_new_tokens`."""
        return plan

    def more(
        self, lm: LanguageModel, plan: Plan, logits: Sequence[Tensor], seed: int
    ) -> Plan | None:
        """What is asked next, by all that was asked and answered so far. None: nothing."""
        return None

    def answer(self, plan: Plan, logits: Sequence[Tensor]) -> Answer:
        """The answer by the label logits of each prompt; those of all rounds are one plan."""
        return mean_answer(plan, logits)

    def notes(
        self, lm: LanguageModel, plan: Plan, answer: Answer, seed: int
    ) -> dict[str, Any] | None:
        """More that a sample keeps: a JSON object."""
        return None

    @property
    def asks_again(self) -> bool:
        """Whether it may ask more rounds, which depend on the answers."""
        return type(self).more is not Method.more

    def standard_template(self, lm: LanguageModel) -> Template:
        """How its preset writes a prompt with all choices for this model."""
        return self.preset.of(lm.config.model_type).standard_template


@dataclass(frozen=True)
class SelfEnsemble(Method):
    """The paper's method: N = `trials` times the choices are split into groups of m = `group_size`.
    `grouping` and `null_option`, where given, override those of the preset."""

    name: ClassVar[str] = "self-ensemble"
    group_size: int = 4
    trials: int = 20
    grouping: Grouping | None = None
    null_option: bool | None = None
    preset: Preset = PAPER

    def plan(self, lm: LanguageModel, question: Question, seed: int = 0) -> Plan:
        """Steps 1 and 2 up to the model: draw the groups and write their prompts."""
        preset = self.preset.of(lm.config.model_type)
        null_option = preset.null_option if self.null_option is None else self.null_option
        check_length(lm, question)
        check_labels(min(self.group_size, len(question.choices)) + null_option)
        groups = make_groups(
            len(question.choices),
            self.group_size,
            self.trials,
            seed,
            question.id if preset.groups_per_question else "",
            self.grouping or preset.grouping,
        )
        null = [NULL_OPTION] if null_option else []
        listed = [[question.choices[i] for i in group] + null for group in groups.flat]
        prefix, prompts = write_prompts(lm.tokenizer, preset.template, question.text, listed)
        if not preset.null_in_softmax:
            prompts = [
                replace(prompt, label_ids=prompt.label_ids[: len(group)])
                for prompt, group in zip(prompts, groups.flat, strict=True)
            ]
        if preset.last_group_early:
            # The row before a prompt's end is the end of the prompt without its last token.
            prompts[-1] = replace(prompts[-1], ids=prompts[-1].ids[: -preset.last_group_early])
        return Plan(question, groups, prefix, prompts, dtype=preset.dtype)


@dataclass(frozen=True)
class Standard(Method):
    """Standard inference: one prompt with all K choices and no null option; one group."""

    name: ClassVar[str] = "standard"
    preset: Preset = PAPER

    def plan(self, lm: LanguageModel, question: Question, seed: int = 0) -> Plan:
        order = tuple(range(len(question.choices)))
        return plan_orders(lm, question, self.standard_template(lm), [order])


def plan_orders(
    lm: LanguageModel, question: Question, template: Template, orders: Sequence[tuple[int, ...]]
) -> Plan:
    """Prompts with all K choices and no null option, one for each order of the choices."""
    check_length(lm, question)
    listed = [[question.choices[i] for i in order] for order in orders]
    prefix, prompts = write_prompts(lm.tokenizer, template, question.text, listed)
    groups = Groups(tuple((order,) for order in orders), complete=True)
    return Plan(question, groups, prefix, prompts)


def label_logits(lm: LanguageModel, plan: Plan, engine: str = "tree") -> list[Tensor]:
    """Each prompt's label logits, float64 on the CPU, in the order of its choices; the null option
    last, where it counts. No other logit is computed."""
    columns = sorted({i for prompt in plan.prompts for i in prompt.label_ids})
    if plan.layout is None:
        logits = branch_logits(lm, plan.prefix, plan.branches, engine, columns)
    else:
        check_fit(lm.name, lm.config, plan.prefix, plan.branches, columns)
        logits = layout_logits(lm, plan.layout, columns)
    place = {column: i for i, column in enumerate(columns)}
    return [
        row[[place[i] for i in prompt.label_ids]]
        for prompt, row in zip(plan.prompts, logits.cpu().double(), strict=True)
    ]


def mean_answer(plan: Plan, logits: Sequence[Tensor]) -> Answer:
    """Softmax over each group's labels (the readout, Eq. 6), then the mean (Eq. 2)."""
    flat = plan.groups.flat
    weights = plan.groups.weights or [1.0] * len(flat)
    groups = []
    for choices, weight, row in zip(flat, weights, logits, strict=True):
        p, m = torch.softmax(row.to(getattr(torch, plan.dtype)), dim=-1).double(), len(choices)
        groups.append(Group(choices, p[:m], float(p[m]) if len(p) > m else None, weight))
    return combine(len(plan.question.choices), groups, plan.dtype)


def combine(num_choices: int, groups: Sequence[Group], dtype: str = "float64") -> Answer:
    """The mean (Eq. 2): each choice's weighted mean probability over the groups that hold it, 0 if
    none does; each sum and the quotient are rounded to `dtype`. Over a partition these scores sum
    to at most ceil(K / m), not to 1; `probabilities` are the scores divided by their sum."""
    total = torch.zeros(num_choices, dtype=getattr(torch, dtype))
    weight = torch.zeros(num_choices, dtype=torch.float64)
    for group in groups:
        total[list(group.choices)] += (group.weight * group.probabilities).to(total.dtype)
        weight[list(group.choices)] += group.weight
    scores = (total / torch.where(weight > 0, weight, 1.0).to(total.dtype)).double()
    if not scores.any():
        raise InputError(f'every prompt says "{NULL_OPTION}" alone; leave the null option out')
    # max() of a list gives the first of equals; torch.argmax promises no order among ties.
    prediction = max(range(num_choices), key=scores.tolist().__getitem__)
    return Answer(scores / scores.sum(), scores, prediction, tuple(groups))
