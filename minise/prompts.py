"""What is asked of a language model and what it says: prompts as token ids, and label logits.

A method (method.py) makes `Prompts`, and a `LanguageModel` answers them. The model may run here
(lm.py), in another library, or in a server: a method sees no difference.

G prompts of a question, L labels of a prompt. In definition.py: `ask` has them as lists. Next to
read: template.py, which writes prompts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from minise.errors import InputError, QuestionUnsuited
from minise.tokenizer import Tokenizer


@dataclass(frozen=True)
class Prompts:
    """G prompts `prefix + branch` as token ids, and for each the ids of its labels, whose logits
    are read after it. Raises InputError for no prompts, an empty one, or other numbers of labels
    than prompts."""

    prefix: list[int]
    branches: list[list[int]]
    label_ids: list[list[int]]

    def __post_init__(self) -> None:
        check_tokens(self.prefix, self.branches)
        if len(self.label_ids) != len(self.branches) or not all(self.label_ids):
            given = f"{len(self.label_ids)} lists of labels for {len(self.branches)} prompts"
            raise InputError(f"{given}; give each prompt the ids of its labels, one or more")
        check_ids(self.label_ids)

    @property
    def all_ids(self) -> list[list[int]]:
        """Every list of ids in it."""
        return [self.prefix, *self.branches, *self.label_ids]

    @property
    def longest(self) -> int:
        """Tokens of the longest prompt."""
        return len(self.prefix) + max(len(branch) for branch in self.branches)


@dataclass(frozen=True, eq=False)
class LabelLogits:
    """What is read after one prompt, float64 on the CPU. labels: (L,), the logits of its labels.
    total: one number, the log of the sum of exp over the whole vocabulary. So `labels - total` are
    log-probabilities."""

    labels: Tensor
    total: Tensor

    @property
    def log_probabilities(self) -> Tensor:
        """Of the labels among the whole vocabulary: (L,), in nats."""
        return self.labels - self.total


@dataclass(frozen=True)
class Limits:
    """positions: tokens of the longest prompt. vocabulary: token ids are below it."""

    positions: int
    vocabulary: int


class LanguageModel(Protocol):
    """name: a folder, hub id or server, for reports. family: the model_type of its config.json;
    empty if it is not known. engine: how its prompts run, for reports."""

    @property
    def name(self) -> str: ...
    @property
    def family(self) -> str: ...
    @property
    def engine(self) -> str: ...
    @property
    def tokenizer(self) -> Tokenizer: ...
    @property
    def limits(self) -> Limits: ...

    def logits(self, prompts: Prompts) -> list[LabelLogits]:
        """One for each prompt, in their order. Raises InputError for prompts that cannot run."""
        ...


def check_tokens(prefix: Sequence[int], branches: Sequence[Sequence[int]]) -> None:
    """Refuse no prompts, an empty one, and a token id below 0."""
    has_tokens = bool(branches) and (bool(prefix) or all(branches))
    if not has_tokens:
        raise InputError("a prompt has no token; use another tokenizer, or another template")
    check_ids([prefix, *branches])


def check_ids(lists: Sequence[Sequence[int]]) -> None:
    """Refuse a token id below 0."""
    smallest = min(min(ids, default=0) for ids in lists)
    if smallest < 0:
        raise InputError(f"token id {smallest} is below 0; give ids from 0")


def check_prompts(lm: LanguageModel, prompts: Prompts) -> None:
    """Refuse a prompt beyond the model's positions, and a token id beyond its vocabulary."""
    check_positions(lm, prompts.longest)
    check_vocabulary(lm, prompts.all_ids)


def check_positions(lm: LanguageModel, longest: int) -> None:
    """Refuse a prompt of so many tokens, if the model has fewer positions."""
    positions = lm.limits.positions
    if longest > positions:
        what = f"a prompt has {longest} tokens, but {lm.name} has positions for {positions}"
        remedy = "shorten the question or its choices, or use smaller groups"
        raise QuestionUnsuited(f"{what}; {remedy}")


def check_vocabulary(lm: LanguageModel, lists: Sequence[Sequence[int]]) -> None:
    """Refuse a token id beyond the model's vocabulary."""
    limits = lm.limits
    largest = max(max(ids, default=0) for ids in lists)
    if largest >= limits.vocabulary:
        what = f"token id {largest} is beyond the vocabulary of {lm.name} ({limits.vocabulary})"
        raise InputError(f"{what}; its tokenizer.json belongs to another model")


def check_length(lm: LanguageModel, text: str, choices: Sequence[str]) -> None:
    """Refuse a text or a choice that alone has twice the tokens that the model has positions for,
    before many prompts repeat it. Twice, as a text may have fewer tokens inside a prompt than
    alone. Whether a prompt fits is seen when it is written."""
    for one in (text, max(choices, key=len)):
        [ids] = lm.tokenizer.encode([one])
        if len(ids) > 2 * lm.limits.positions:
            check_positions(lm, len(ids))
