"""What the authors' released code does differently, family by family (docs/paper.md)."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from minise.errors import InputError, check_name
from minise.grouping import Grouping, check_sizes
from minise.lab.data.kinds import YES_OR_NO, check_fields, whole_from
from minise.lab.methods.groupings import independent_draws
from minise.method import (
    Answer,
    Group,
    GroupPlan,
    Method,
    SelfEnsemble,
    Standard,
    answer_of,
    group_prompts,
    mean_over_groups,
)
from minise.prompts import LabelLogits, LanguageModel, Prompts
from minise.question import Question
from minise.template import LABELS, Template
from minise.tokenizer import Tokenizer


@dataclass(frozen=True)
class BareLabels(Template):
    """A template whose labels are encoded alone to find their ids, as the released code does. That
    may give a token which never follows the prompt."""

    label: str = "{label}"

    def label_ids(self, tokenizer: Tokenizer, text: str, ids: list[int], count: int) -> list[int]:
        labels = list(LABELS[:count])
        return [ids_of_label[-1] for ids_of_label in tokenizer.encode(labels)]


@dataclass(frozen=True)
class Released:
    """How the released code asks a family of models: standard inference, and the groups. The last
    two are settings of AuthorsCode."""

    standard: Template
    group: Template
    null_option: bool = True
    last_group_early: int = 0


# Standard inference: the data set's formatted question and " Answer:".
_FORMATTED = BareLabels("{question} ", "({label}) {choice} ", "Answer:")
# The question ends in " \n", a group runs on one line, and its logits are read after the newline
# that closes it. Labels are looked up bare ("A", not " A").
_LINE = BareLabels("{question} \n", "({label}) {choice} ", "Answer: \n")
_CHAT = "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\n"
_CHAT_LINE = replace(_LINE, question=_CHAT + _LINE.question)
DTYPES = ("float64", "float32", "bfloat16", "float16")
RELEASED_FAMILIES = {
    # Only its standard script looks up " A", which is also how a prompt continues after "Answer:".
    "llama": Released(Template("{question} ", "({label}) {choice} ", "Answer:"), _LINE),
    # Its tokenizer makes two tokens of " \n", but the code's offset for the last group counts one.
    "mistral": Released(_FORMATTED, _LINE, last_group_early=1),
    "qwen2": Released(_FORMATTED, _CHAT_LINE, null_option=False),
}


def released(lm: LanguageModel) -> Released:
    """For the model's family. Raises InputError for one that the released code does not have."""
    check_name("model of the released code", lm.family, RELEASED_FAMILIES)
    return RELEASED_FAMILIES[lm.family]


@dataclass(frozen=True)
class AuthorsCode(SelfEnsemble):
    """Self-Ensemble as the released code computes it. Each departure is one field; a field that is
    None is as their code has it for the model's family.

    groups_per_question: draw new groups for each question. null_in_softmax: include the label of
    the null option in the group's softmax. last_group_early: read the last group this many tokens
    before its end. dtype: of each group's softmax and of the mean over the groups.
    """

    name: ClassVar[str] = "authors-code"
    grouping: Grouping = independent_draws
    null_option: bool | None = None  # type: ignore[assignment]
    template: Template | None = None  # type: ignore[assignment]
    groups_per_question: bool = False
    null_in_softmax: bool = False
    last_group_early: int | None = None
    dtype: str = "bfloat16"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_fields(self, {}, {"null_option": YES_OR_NO, "last_group_early": whole_from(0)})
        check_name("dtype", self.dtype, DTYPES)

    def prompts(
        self, lm: LanguageModel, question: Question, seed: int = 0
    ) -> tuple[GroupPlan, Prompts]:
        """The prompts of the released code. Raises InputError for a family it does not have."""
        theirs = released(lm)
        template = theirs.group if self.template is None else self.template
        null_option = theirs.null_option if self.null_option is None else self.null_option
        early = theirs.last_group_early if self.last_group_early is None else self.last_group_early

        K = len(question.choices)
        check_sizes(K, self.group_size, self.trials)
        question_id = question.id if self.groups_per_question else ""
        groups = self.grouping(K, self.group_size, self.trials, seed, question_id)
        plan, prompts = group_prompts(lm, question, template, groups, null_option)

        label_ids = prompts.label_ids
        if null_option and not self.null_in_softmax:
            label_ids = [ids[:-1] for ids in prompts.label_ids]  # the last is the null option's
        branches = prompts.branches
        if early:  # without its last tokens, a prompt ends so many rows earlier
            if early >= len(branches[-1]):
                long = f"the last prompt has {len(branches[-1])} tokens after what all begin with"
                raise InputError(f"last_group_early is {early}, and {long}; give less")
            branches = [*branches[:-1], branches[-1][:-early]]
        return plan, replace(prompts, branches=branches, label_ids=label_ids)

    def answer(self, plan: GroupPlan, logits: Sequence[LabelLogits]) -> Answer:
        """The mean over the groups, each softmax, sum and quotient rounded to `dtype`."""
        dtype = getattr(torch, self.dtype)
        sums = torch.zeros(plan.K, dtype=dtype)
        counts = torch.zeros(plan.K, dtype=dtype)
        answer = mean_over_groups(plan, logits)  # for the shares of labels, and the trials
        rounded = []
        for group, read in zip(answer.groups, logits, strict=True):
            m = len(group.choices)
            p = read.labels.to(dtype).softmax(dim=-1)
            places = list(group.choices)
            sums[places] += p[:m]
            counts[places] += 1
            null = float(p[m]) if len(p) > m else None
            rounded.append(Group(group.choices, p[:m].double(), null, group.trial))
        scores = (sums / counts.clamp(min=1)).double()
        return answer_of(scores, rounded, answer.on_labels)


@dataclass(frozen=True)
class AuthorsStandard(Method):
    """Standard inference as the released code writes it."""

    name: ClassVar[str] = "authors-standard"

    def prompts(
        self, lm: LanguageModel, question: Question, seed: int = 0
    ) -> tuple[GroupPlan, Prompts]:
        return Standard(released(lm).standard).prompts(lm, question, seed)
