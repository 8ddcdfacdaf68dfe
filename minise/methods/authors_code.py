"""What the authors' released code does differently, family by family (docs/paper.md)."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from minise.checks import check_name, check_sizes
from minise.engines import LanguageModel
from minise.grouping import Grouping
from minise.method import Answer, Method, Plan, SelfEnsemble, Standard, plan_groups
from minise.methods.groupings import independent_draws
from minise.prompt import LABELS, Template
from minise.question import Question
from minise.tokenizer import Tokenizer


@dataclass(frozen=True)
class BareLabels(Template):
    """A template whose labels are encoded alone to find their ids, as the released code does. That
    may give a token which never follows the prompt."""

    label: str = "{label}"

    def label_ids(self, tokenizer: Tokenizer, text: str, ids: list[int], count: int) -> list[int]:
        return [ids[-1] for ids in tokenizer.encode(list(LABELS[:count]))]


# The question ends in " \n", a group runs on one line, and its logits are read after the newline
# that closes it. Labels are looked up bare ("A", not " A").
_LINE = BareLabels("{question} \n", "({label}) {choice} ", "Answer: \n")
_CHAT = "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\n"
# Standard inference: the data set's formatted question and " Answer:".
_FORMATTED = BareLabels("{question} ", "({label}) {choice} ", "Answer:")
STANDARD = {
    # Only this script looks up " A", which is also how a prompt continues after "Answer:".
    "llama": Template("{question} ", "({label}) {choice} ", "Answer:"),
    "mistral": _FORMATTED,
    "qwen2": _FORMATTED,
}
# Fields of AuthorsCode that differ between the families.
GROUPS: dict[str, dict[str, Any]] = {
    "llama": {"template": _LINE},
    # Its tokenizer makes two tokens of " \n", but the code's offset for the last group counts one.
    "mistral": {"template": _LINE, "last_group_early": 1},
    "qwen2": {"template": replace(_LINE, question=_CHAT + "{question} \n"), "null_option": False},
}


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

    def plan(self, lm: LanguageModel, question: Question, seed: int = 0) -> Plan:
        """The prompts of the released code. Raises InputError for a family it does not have."""
        check_name("model of the released code", lm.config.model_type, GROUPS)
        given = {name: value for name, value in vars(self).items() if value is not None}
        its = {"null_option": True, "last_group_early": 0, **GROUPS[lm.config.model_type], **given}
        early, null, template = its["last_group_early"], its["null_option"], its["template"]
        sizes = len(question.choices), self.group_size, self.trials
        check_sizes(*sizes)
        groups = self.grouping(*sizes, seed, question.id if self.groups_per_question else "")
        plan = plan_groups(lm, question, template, groups, null)
        prompts = [
            replace(p, label_ids=(p.label_ids or [])[: len(group) + null * self.null_in_softmax])
            for p, group in zip(plan.prompts, groups.flat, strict=True)
        ]
        if early:  # without its last tokens, a prompt ends so many rows earlier
            prompts[-1] = replace(prompts[-1], ids=prompts[-1].ids[:-early])
        return replace(plan, prompts=prompts)

    def answer(self, plan: Plan, logits: Sequence[Tensor]) -> Answer:
        """As `Method.answer`, each softmax, sum and quotient rounded to `dtype`."""
        return super().answer(plan, [row.to(getattr(torch, self.dtype)) for row in logits])


@dataclass(frozen=True)
class AuthorsStandard(Method):
    """Standard inference as the released code writes it."""

    name: ClassVar[str] = "authors-standard"

    def plan(self, lm: LanguageModel, question: Question, seed: int = 0) -> Plan:
        check_name("model of the released code", lm.config.model_type, STANDARD)
        return Standard(STANDARD[lm.config.model_type]).plan(lm, question, seed)
