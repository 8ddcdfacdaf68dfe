"""Self-Ensemble (Sections 3 and 4) and standard inference as methods: plan -> logits -> answer.

    question -> groups -> prompts -> logits at each prompt's end -> group probabilities -> scores

The plan holds the groups and their prompts (Section 3.2, steps 1 and 2). The answer is the softmax
over each group's labels (Section 4.3, the readout, Eq. 6) and the mean over the groups (Section
3.2, step 3, Eq. 2). The engines compute the logits between the two.

Next to read: rounds.py, which runs a plan. Then config.py, rope.py, attention.py, cache.py and
model.py: the model itself.
"""

from __future__ import annotations

import html
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
    """How a method works apart from group size, number of trials and seed. The defaults are the
    paper's. Each difference is one field, so `dataclasses.replace` can change it alone."""

    grouping: Grouping = random_partitions
    groups_per_question: bool = True
    """Draw new groups for each question. False: every question gets the same groups of indices."""
    null_option: bool = True
    """Write "None of the above" as each group's last choice (appendix on normalization). Many
    groups lack the right choice. Without it they would share all probability among wrong ones."""
    null_in_softmax: bool = True
    """Include the null option's label, where it is written, in the group's softmax."""
    template: Template = DEFAULT_TEMPLATE
    """How a group's prompt is written."""
    standard_template: Template = DEFAULT_TEMPLATE
    """How the prompt of standard inference, with all K choices, is written."""
    last_group_early: int = 0
    """Read the last group this many tokens before its end, as the released code does for one family
    by an offset that is wrong there (docs/paper.md). 0: at its end."""
    dtype: str = "float64"
    """The dtype of each group's softmax and of the mean over the groups."""

    def of(self, model_type: str) -> Preset:
        """The preset for a family of models. The paper's is the same for all families."""
        return self


PAPER = Preset()


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

    def __repr__(self) -> str:
        rounded = [round(p, 3) for p in self.probabilities.tolist()]
        null = None if self.null is None else round(self.null, 3)
        return f"Group(choices={self.choices}, probabilities={rounded}, null={null})"


@dataclass(frozen=True, eq=False)
class Answer:
    """probabilities: (K,) float64, sums to 1. scores: (K,) float64, the paper's Pr(op_i), the mean
    (Eq. 2) over the groups in which op_i appears. prediction: the index of the largest score, the
    lower index on a tie. groups: the result of each prompt. choices: the texts of the question's
    choices, where `ask` knows them."""

    probabilities: Tensor
    scores: Tensor
    prediction: int
    groups: tuple[Group, ...]
    choices: tuple[str, ...] = ()

    def __repr__(self) -> str:
        rounded = [round(p, 3) for p in self.probabilities.tolist()]
        result = f"prediction={self.prediction}, probabilities={rounded}"
        return f"Answer({result}, groups={len(self.groups)})"

    def _repr_html_(self) -> str:
        """What a notebook shows: a row for each choice; ">" marks the prediction, as in `ask`."""
        rows = "<tr><th></th><th>choice</th><th>probability</th></tr>"
        for i, p in enumerate(self.probabilities.tolist()):
            mark = "&gt;" if i == self.prediction else ""
            text = html.escape(self.choices[i]) if self.choices else i
            rows += f"<tr><td>{mark}</td><td>{text}</td><td>{p:.1%}</td></tr>"
        return f"<table>{rows}</table>"


@dataclass(frozen=True)
class Plan:
    """What the model will be asked for one question: its groups, and a prompt for each group. The
    token ids of a prompt are `prefix + prompt.ids`.

    layout: a layout that the method made itself, with one end for each prompt. It is run as it is,
    whatever the engine; the ablations use this. dtype: that of softmax and mean. rounds: most
    methods run one plan. One that asks again, by what it has learnt, runs several; they are joined
    to one plan, which then lists them here.
    """

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
        """How many tokens the engine runs for this plan."""
        if self.rounds:
            return sum(plan.tokens(engine) for plan in self.rounds)
        if self.layout is not None:
            return len(self.layout.tokens)
        return token_counts(self.prefix, self.branches)[engine]


class Method:
    """A way to answer a question with a model: `plan` says which prompts to run, and `answer` turns
    their label logits into probabilities. The forward pass between the two is the same for all.

    A method needs a `name` and a `plan`. Everything else has the default that stands here. If the
    method is a dataclass, its fields are its settings. Settings named `preset` and `grouping` hold
    objects: where a user wrote "exact", the function is already in its place. For one question
    the calls are

        plan -> write -> forward pass
        more -> forward pass, again and again, until more returns None
        answer -> notes
    """

    name: ClassVar[str]
    preset: Preset = PAPER
    max_new_tokens: int = 0  # how many tokens `write` may let the model write

    def check(self, questions: Sequence[tuple[int, Question]]) -> None:
        """Raise InputError if this method cannot answer these (seed, question) pairs. It is called
        once, before any question is run."""

    def plan(self, lm: LanguageModel, question: Question, seed: int = 0) -> Plan:
        """The prompts to run. Raises InputError if the method cannot ask this question."""
        raise NotImplementedError

    def write(
        self, lm: LanguageModel, plan: Plan, seed: int = 0, on_text: OnText | None = None
    ) -> Plan:
        """A plan whose prompts hold text that the model wrote first. `on_text` gets each piece of
        that text. A method that does this sets `max_new_tokens`."""
        return plan

    def more(
        self, lm: LanguageModel, plan: Plan, logits: Sequence[Tensor], seed: int
    ) -> Plan | None:
        """The plan of the next round, given all plans and label logits so far; None to stop."""
        return None

    def answer(self, plan: Plan, logits: Sequence[Tensor]) -> Answer:
        """The answer, from the label logits of each prompt. All rounds come joined as one plan."""
        return mean_answer(plan, logits)

    def notes(
        self, lm: LanguageModel, plan: Plan, answer: Answer, seed: int
    ) -> dict[str, Any] | None:
        """Further facts to keep with the saved answer to this question: a JSON object, or None."""
        return None

    @property
    def asks_again(self) -> bool:
        """Whether the method may ask further rounds, which depend on the answers."""
        return type(self).more is not Method.more

    def standard_template(self, lm: LanguageModel) -> Template:
        """How the preset writes a prompt with all choices for this model."""
        return self.preset.of(lm.config.model_type).standard_template


@dataclass(frozen=True)
class SelfEnsemble(Method):
    """The paper's method: N = `trials` times the choices are split into groups of m = `group_size`.
    `grouping` and `null_option` override the preset's, unless they are None."""

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
        choice_lists = [[question.choices[i] for i in group] + null for group in groups.flat]
        prefix, prompts = write_prompts(lm.tokenizer, preset.template, question.text, choice_lists)
        if not preset.null_in_softmax:
            prompts = [
                replace(prompt, label_ids=prompt.label_ids[: len(group)])
                for prompt, group in zip(prompts, groups.flat, strict=True)
            ]
        if preset.last_group_early:
            # Without its last tokens, a prompt ends so many rows earlier.
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
    """A prompt without a null option for each of these orders of choices (all K, or some)."""
    check_length(lm, question)
    choice_lists = [[question.choices[i] for i in order] for order in orders]
    prefix, prompts = write_prompts(lm.tokenizer, template, question.text, choice_lists)
    groups = Groups(tuple((order,) for order in orders), complete=True)
    return Plan(question, groups, prefix, prompts)


def label_logits(lm: LanguageModel, plan: Plan, engine: str = "tree") -> list[Tensor]:
    """Each prompt's label logits, float64 on the CPU, in the order of its choices; that of the null
    option is last, where it counts. Only the logits of labels are computed."""
    columns = sorted({i for prompt in plan.prompts for i in prompt.label_ids})
    # The whole vocabulary is one product with the output matrix, not a dot product for each token.
    read = None if len(columns) == lm.config.vocab_size else columns
    if plan.layout is None:
        logits = branch_logits(lm, plan.prefix, plan.branches, engine, read)
    else:
        check_fit(lm.name, lm.config, plan.prefix, plan.branches, columns)
        logits = layout_logits(lm, plan.layout, read)
    place = {token_id: i for i, token_id in enumerate(columns)}
    rows = []
    for prompt, row in zip(plan.prompts, logits.cpu().double(), strict=True):
        rows.append(row[[place[token_id] for token_id in prompt.label_ids]])
    return rows


def mean_answer(plan: Plan, logits: Sequence[Tensor]) -> Answer:
    """Softmax over each group's labels (the readout, Eq. 6), then the mean (Eq. 2)."""
    flat = plan.groups.flat
    weights = plan.groups.weights or [1.0] * len(flat)
    groups = []
    for choices, weight, row in zip(flat, weights, logits, strict=True):
        p = torch.softmax(row.to(getattr(torch, plan.dtype)), dim=-1).double()
        m = len(choices)
        null = float(p[m]) if len(p) > m else None  # one label more than choices: the null option
        groups.append(Group(choices, p[:m], null, weight))
    return combine(len(plan.question.choices), groups, plan.dtype)


def combine(num_choices: int, groups: Sequence[Group], dtype: str = "float64") -> Answer:
    """The mean (Eq. 2): each choice's weighted mean probability over the groups that hold it, 0 if
    none does; each sum and the quotient are rounded to `dtype`. Over a partition these scores sum
    to at most ceil(K / m), not to 1; `probabilities` are the scores divided by their sum. Raises
    InputError if all scores are 0."""
    total = torch.zeros(num_choices, dtype=getattr(torch, dtype))
    weights = torch.zeros(num_choices, dtype=torch.float64)
    for group in groups:
        total[list(group.choices)] += (group.weight * group.probabilities).to(total.dtype)
        weights[list(group.choices)] += group.weight
    scores = (total / torch.where(weights > 0, weights, 1.0).to(total.dtype)).double()
    if not scores.any():
        raise InputError(
            f'every prompt gives "{NULL_OPTION}" all probability; leave the null option out'
        )
    # max() of a list gives the first of equals; torch.argmax promises no order among ties.
    prediction = max(range(num_choices), key=scores.tolist().__getitem__)
    return Answer(scores / scores.sum(), scores, prediction, tuple(groups))
