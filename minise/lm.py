"""What a method asks of a language model: the logits of some labels after some prompts.

A method (method.py) makes `Prompts`, and a `LanguageModel` answers them. The model may run here
(`LocalModel`), in another library, or in a server (minise/lab/serving/): a method sees no difference.

G prompts of a question, L labels of a prompt, C columns, D hidden_size, V vocabulary.
Next to read: pipeline.py, which asks several questions in a pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from minise.engines import ENGINES, Engine, Ids, tokens_run
from minise.errors import InputError, Unsuited, check_name
from minise.layout import shared_length
from minise.tokenizer import Tokenizer

WHOLE_AT_ONCE = 64  # prompts whose logits of the whole vocabulary are in memory at once
TOGETHER = 512  # tokens of a pass, up to which one more question joins it: docs/costs.md
TOGETHER_ON_GPU = 4096
CHARACTERS = 4  # of a token, at least, in a text that may fit


@dataclass(frozen=True)
class Prompts:
    """G prompts `prefix + branch` as token ids, and what is read after each.

    label_ids: for each prompt, the ids of its labels. texts: of each prompt, for a model that takes
    text. Raises InputError for no prompts, an empty one, or other numbers of labels than prompts.
    """

    prefix: list[int]
    branches: list[list[int]]
    label_ids: list[list[int]]
    texts: list[str] = field(default_factory=list, repr=False)

    def __post_init__(self) -> None:
        has_tokens = bool(self.branches) and (bool(self.prefix) or all(self.branches))
        if not has_tokens:
            raise InputError("a prompt has no token; use another tokenizer, or another template")
        if len(self.label_ids) != len(self.branches) or not all(self.label_ids):
            given = f"{len(self.label_ids)} lists of labels for {len(self.branches)} prompts"
            raise InputError(f"{given}; give each prompt the ids of its labels, one or more")
        ids = [self.prefix, *self.branches, *self.label_ids]
        smallest = min(min(some, default=0) for some in ids)
        if smallest < 0:
            raise InputError(f"token id {smallest} is below 0; give ids from 0")

    @property
    def longest(self) -> int:
        """Tokens of the longest prompt."""
        return len(self.prefix) + max(len(branch) for branch in self.branches)


def join(several: Sequence[Prompts]) -> Prompts:
    """All prompts as one value. Its prefix is what the prompts of all begin with."""
    shared = shared_length([one.prefix for one in several])
    branches: list[list[int]] = []
    label_ids: list[list[int]] = []
    texts: list[str] = []
    for one in several:
        rest = one.prefix[shared:]
        branches.extend(rest + branch for branch in one.branches)
        label_ids.extend(one.label_ids)
        texts.extend(one.texts)
    return Prompts(several[0].prefix[:shared], branches, label_ids, texts)


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
    """positions: tokens of the longest prompt. vocabulary: token ids are below it. together: a pass
    takes one more question while it has fewer tokens than this after what all its questions begin
    with; 0: it has one question."""

    positions: int
    vocabulary: int
    together: int = 0


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


@dataclass(frozen=True, eq=False)
class LocalModel:
    """A model that runs here: a decoder, its tokenizer, and the engine that lays prompts out.

    decoder: model.Decoder, or another with the same call. config: the facts of its checkpoint, with
    vocab_size and max_position_embeddings. engine: a key of ENGINES, or the name of `own_engine`.
    revision: the hub's commit hash.
    """

    name: str
    config: Any = field(repr=False)
    decoder: Any = field(repr=False)
    tokenizer: Tokenizer = field(repr=False)
    engine: str = "tree"
    own_engine: Engine | None = field(default=None, repr=False)
    revision: str | None = None

    def __post_init__(self) -> None:
        if self.own_engine is None:
            check_name("engine", self.engine, ENGINES)

    def with_engine(self, engine: str, own_engine: Engine | None = None) -> LocalModel:
        """The same model with another engine. Raises InputError for an unknown name."""
        return replace(self, engine=engine, own_engine=own_engine)

    @property
    def family(self) -> str:
        return str(self.config.model_type)

    @property
    def limits(self) -> Limits:
        together = 0
        if self.engine == "tree":  # packed would repeat each question for each of its prompts
            together = TOGETHER_ON_GPU if self.decoder.device.type == "cuda" else TOGETHER
        return Limits(self.config.max_position_embeddings, self.config.vocab_size, together)

    @torch.inference_mode()
    def ends(self, prefix: Ids, branches: Sequence[Ids]) -> Tensor:
        """Hidden states (G, D) at the ends of the prompts, by this model's engine."""
        run = self.own_engine or ENGINES[self.engine]
        hidden_GD = run(self.decoder, prefix, branches)
        if hidden_GD.dim() != 2 or len(hidden_GD) != len(branches):
            gives = f"the engine {self.engine} gives a tensor {tuple(hidden_GD.shape)}"
            wanted = f"give ({len(branches)}, D), a hidden state for the end of each branch"
            raise InputError(f"{gives}; {wanted}")
        return hidden_GD

    @torch.inference_mode()
    def logits(self, prompts: Prompts) -> list[LabelLogits]:
        check_prompts(self, prompts)
        hidden_GD = self.ends(prompts.prefix, prompts.branches)

        # The logits of all labels of all prompts, and the totals over the vocabulary.
        labels: set[int] = set()
        for ids in prompts.label_ids:
            labels.update(ids)
        columns_C = torch.tensor(sorted(labels), device=hidden_GD.device)
        logits_GC = self.decoder.logits(hidden_GD, columns_C)
        check_finite(self, logits_GC, hidden_GD)
        wide = torch.promote_types(logits_GC.dtype, torch.float32)
        totals = []
        for some_GD in hidden_GD.split(WHOLE_AT_ONCE):
            logits_GV = self.decoder.logits(some_GD)
            totals.append(logits_GV.to(wide).logsumexp(dim=-1))
        totals_G = torch.cat(totals)

        # To each prompt its own.
        column_of = {token: column for column, token in enumerate(columns_C.tolist())}
        logits_GC = logits_GC.double().cpu()
        totals_G = totals_G.double().cpu()
        answers = []
        for logits_C, total, ids in zip(logits_GC, totals_G, prompts.label_ids, strict=True):
            places = [column_of[token] for token in ids]
            answers.append(LabelLogits(logits_C[places], total))
        return answers


@torch.inference_mode()
def branch_logits(
    lm: LocalModel,
    prefix: Ids,
    branches: Sequence[Ids],
    engine: str | None = None,
    columns: Ids | None = None,
) -> Tensor:
    """The logits after each prompt `prefix + branch`: (G, V), or (G, len(columns)) for those token
    ids, in the weights' dtype and on their device. engine: a key of ENGINES; by default the
    model's.

    Raises InputError for an unknown engine, an empty prompt, one beyond the model's positions, or
    token ids that its vocabulary does not have.
    """
    if engine is not None:
        lm = lm.with_engine(engine)
    read = [0] if columns is None else list(columns)
    prompts = Prompts(list(prefix), [list(one) for one in branches], [read] * len(branches))
    check_prompts(lm, prompts)
    hidden_GD = lm.ends(prefix, branches)
    ids = None if columns is None else torch.tensor(read, device=hidden_GD.device)
    logits: Tensor = lm.decoder.logits(hidden_GD, ids)
    check_finite(lm, logits, hidden_GD)
    return logits


def check_prompts(lm: LanguageModel, prompts: Prompts) -> None:
    """Refuse a prompt beyond the model's positions, and a token id beyond its vocabulary."""
    longest, limits = prompts.longest, lm.limits
    if longest > limits.positions:
        what = f"a prompt has {longest} tokens, but {lm.name} has positions for {limits.positions}"
        raise Unsuited(f"{what}; shorten the question or its choices, or use smaller groups")
    ids = [prompts.prefix, *prompts.branches, *prompts.label_ids]
    largest = max(max(some, default=0) for some in ids)
    if largest >= limits.vocabulary:
        what = f"token id {largest} is beyond the vocabulary of {lm.name} ({limits.vocabulary})"
        raise InputError(f"{what}; its tokenizer.json belongs to another model")


def check_length(lm: LanguageModel, text: str, choices: Sequence[str]) -> None:
    """Refuse a question far beyond the model's positions, before many prompts repeat its text."""
    whole = f"{text}\n{max(choices, key=len)}"
    if len(whole) > CHARACTERS * lm.limits.positions:
        ids = lm.tokenizer.encode([whole])
        check_prompts(lm, Prompts(prefix=[], branches=ids, label_ids=[[0]]))


def check_finite(lm: LanguageModel, logits: Tensor, hidden: Tensor) -> None:
    """Refuse numbers that overflowed. Where a square in the norm overflows, its row becomes 0."""
    if not (logits.isfinite().all() and hidden.any(dim=-1).all()):
        narrow = logits.dtype == torch.float16
        remedy = "use bfloat16 or float32" if narrow else "fetch its weights again"
        raise InputError(f"{lm.name}: its numbers overflow {logits.dtype}; {remedy}")


def tokens_of(lm: LanguageModel, prompts: Prompts) -> int:
    """How many tokens the model runs for these prompts."""
    return tokens_run(lm.engine, prompts.prefix, prompts.branches)
