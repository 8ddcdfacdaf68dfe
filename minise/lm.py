"""A model that runs here: prompts go through its engine and its decoder, and come back as logits.

G prompts of a question, N labels of all of them together, D hidden_size, V vocabulary. In
definition.py: the end of `ask`. In the core this is the last file of the way of a question.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import torch
from torch import Tensor

from minise.definition import Decoder as Definition
from minise.engines import AnyDecoder, Ids, NamedEngine, engine_named
from minise.errors import InputError
from minise.prompts import (
    LabelLogits,
    LanguageModel,
    Limits,
    Prompts,
    check_positions,
    check_prompts,
    check_tokens,
    check_vocabulary,
)
from minise.tokenizer import Tokenizer

AT_ONCE = 64  # prompts whose logits of the whole vocabulary are in memory at once


class ModelFacts(Protocol):
    """What is known of any model that runs here: config.Config is one."""

    @property
    def model_type(self) -> str: ...
    @property
    def vocab_size(self) -> int: ...
    @property
    def max_position_embeddings(self) -> int: ...


@dataclass(frozen=True, eq=False)
class LocalModel:
    """A `LanguageModel`: a decoder, its tokenizer, and the engine that lays prompts out.

    decoder: model.Decoder, or another with the same call. revision: the hub's commit hash.
    definition: makes of weights, by their names in a checkpoint, what the decoder is held against
    (minise/definition.py); None where it is not known.
    """

    name: str
    config: ModelFacts = field(repr=False)
    decoder: AnyDecoder = field(repr=False)
    tokenizer: Tokenizer = field(repr=False)
    named_engine: NamedEngine = field(default_factory=lambda: engine_named("tree"), repr=False)
    revision: str | None = None
    definition: Callable[[Mapping[str, Tensor]], Definition] | None = field(
        default=None, repr=False
    )

    def with_engine(self, engine: str | NamedEngine) -> LocalModel:
        """The same model with another engine: a key of ENGINES, or one that was found
        (loading/plugin.py). Raises InputError for an unknown name."""
        if isinstance(engine, str):
            engine = engine_named(engine)
        return replace(self, named_engine=engine)

    @property
    def engine(self) -> str:
        return self.named_engine.name

    @property
    def family(self) -> str:
        return self.config.model_type

    @property
    def limits(self) -> Limits:
        return Limits(self.config.max_position_embeddings, self.config.vocab_size)

    @torch.inference_mode()
    def hidden_at_ends(self, prefix: Ids, branches: Sequence[Ids]) -> Tensor:
        """Hidden states (G, D) at the ends of the prompts, by this model's engine."""
        hidden_GD = self.named_engine.run(self.decoder, prefix, branches)
        G = len(branches)
        wanted = f"a hidden state for the end of each branch: floats ({G}, D)"
        check_rows(f"the engine {self.engine}", hidden_GD, G, wanted)
        return hidden_GD

    @torch.inference_mode()
    def logits(self, prompts: Prompts) -> list[LabelLogits]:
        """The readout (Section 4.3): the logits of the labels at the end of each prompt."""
        check_prompts(self, prompts)
        hidden_GD = self.hidden_at_ends(prompts.prefix, prompts.branches)
        answers = []
        for start in range(0, len(hidden_GD), AT_ONCE):
            some = slice(start, start + AT_ONCE)
            answers.extend(self.read_labels(hidden_GD[some], prompts.label_ids[some]))
        return answers

    def read_labels(self, hidden_GD: Tensor, label_ids: Sequence[Ids]) -> list[LabelLogits]:
        """The label logits of some prompts, from the hidden states at their ends."""
        logits_GV = self.decoder.logits(hidden_GD)
        check_finite(self, logits_GV, hidden_GD)
        totals_G = wide(logits_GV).logsumexp(dim=-1).double().cpu()
        # The labels of all prompts, one after the other: one copy from a GPU, not one a prompt.
        rows: list[int] = []
        columns: list[int] = []
        for row, ids in enumerate(label_ids):
            rows.extend([row] * len(ids))
            columns.extend(ids)
        labels_N = logits_GV[rows, columns].double().cpu()
        labels_of_prompt = labels_N.split([len(ids) for ids in label_ids])
        return [LabelLogits(*one) for one in zip(labels_of_prompt, totals_G, strict=True)]


@torch.inference_mode()
def branch_logits(
    lm: LocalModel, prefix: Ids, branches: Sequence[Ids], engine: str | None = None
) -> Tensor:
    """The logits after each prompt `prefix + branch`: (G, V), in the weights' dtype and on their
    device. engine: a key of ENGINES; by default the model's.

    Raises InputError for an unknown engine, an empty prompt, one beyond the model's positions, or
    token ids that its vocabulary does not have.
    """
    if engine is not None:
        lm = lm.with_engine(engine)
    check_tokens(prefix, branches)
    check_positions(lm, len(prefix) + max(len(branch) for branch in branches))
    check_vocabulary(lm, [prefix, *branches])
    hidden_GD = lm.hidden_at_ends(prefix, branches)
    logits_GV = lm.decoder.logits(hidden_GD)
    check_finite(lm, logits_GV, hidden_GD)
    return logits_GV


def check_rows(what: str, given: object, rows: int, wanted: str, width: int = 1) -> None:
    """Refuse what is no tensor of floats with so many rows, of `width` numbers at least."""
    if isinstance(given, Tensor):
        gives = f"a tensor {tuple(given.shape)} of {str(given.dtype).removeprefix('torch.')}"
        is_right_shape = given.dim() == 2 and len(given) == rows and given.shape[1] >= width
        if is_right_shape and given.dtype.is_floating_point:
            return
    else:
        gives = f"a {type(given).__name__}, no tensor"
    raise InputError(f"{what} gives {gives}; give {wanted}")


def wide(logits: Tensor) -> Tensor:
    """The same in float32 at least: a sum over a vocabulary needs the digits."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def check_finite(lm: LanguageModel, logits: Tensor, hidden: Tensor) -> None:
    """Refuse numbers that overflowed. Where a square in the norm overflows, its row becomes 0."""
    if not (logits.isfinite().all() and hidden.any(dim=-1).all()):
        narrow = logits.dtype == torch.float16
        remedy = "use bfloat16 or float32" if narrow else "fetch its weights again"
        raise InputError(f"{lm.name}: its numbers overflow {logits.dtype}; {remedy}")
