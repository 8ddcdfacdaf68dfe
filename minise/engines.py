"""Four engines: ways to compute the logits after each prompt of a question.

    plain     the paper's packed sequence under its mask (Section 4), written as the definition
    separate  every prompt alone under a causal mask: Section 3.2 as it is written
    dense     the packed sequence again, computed in smaller calls of fixed shapes
    tree      common prefixes merged, and only the work that the mask allows: the fast one

The results of the last three are equal bit for bit, not only up to rounding. How is the subject of
minise/exact/, which can be left out of a first reading. plain is equal to them up to rounding.
The readout (Section 4.3, Eq. 6) starts here: the logits are those at the end of each branch.

Next to read: method.py, which makes an answer of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from minise.config import Config
from minise.errors import InputError, Unsuited
from minise.exact import run as exact
from minise.layout import Layout, causal_mask, pack
from minise.memory import free_bytes
from minise.model import Decoder
from minise.names import ENGINES
from minise.question import Question
from minise.tokenizer import Tokenizer


@dataclass(frozen=True, eq=False)
class LanguageModel:
    """A loaded checkpoint. `name` is the folder or hub id, `revision` the hub's commit hash.

    Its methods run prompts. A model of another library overrides them.
    """

    has_files: ClassVar[bool] = True  # False for a model of another library (bridges/)
    name: str
    config: Config
    decoder: Decoder = field(repr=False)
    tokenizer: Tokenizer = field(repr=False)
    revision: str | None = None

    def branch_ends(
        self, prefix: Sequence[int], branches: Sequence[Sequence[int]], engine: str
    ) -> Tensor:
        """Hidden states (G, D) after the final norm, at the end of each prompt prefix + branch."""
        if engine == "plain":
            layout = pack(prefix, branches)
            hidden = plain_states(self, layout)
            return hidden[layout.ends.to(hidden.device)]
        if engine == "dense":
            return self.layout_ends(pack(prefix, branches))
        if engine == "tree":
            return exact.read_ends(self.decoder, pack(prefix, branches, tree=True))
        # separate
        return torch.stack([run_alone(self, [*prefix, *branch])[-1] for branch in branches])

    def layout_ends(self, layout: Layout) -> Tensor:
        """Hidden states after the final norm at the ends of any layout, run with its mask as it is:
        (G, D)."""
        hidden = hidden_states(self, layout)
        return hidden[layout.ends.to(hidden.device)]

    def logits(self, ends: Tensor, columns: Tensor | None = None) -> Tensor:
        """The logits of hidden states (G, D): (G, V), or (G, C) for the token ids `columns`."""
        return exact.logits(self.decoder, ends, columns)

    def counted_as(self, engine: str) -> str:
        """The engine that has as many tokens as really run. Another library's cache shares the
        prefix of all prompts alone: its tree has the tokens of dense."""
        return engine

    def identity(self) -> dict[str, Any]:
        """Facts that identify the weights of a model without files. Ready for JSON."""
        return {}


@torch.inference_mode()
def branch_logits(
    lm: LanguageModel,
    prefix: Sequence[int],
    branches: Sequence[Sequence[int]],
    engine: str = "tree",
    columns: Sequence[int] | None = None,
) -> Tensor:
    """The logits after each prompt `prefix + branch`: (G, V), or (G, len(columns)) for those token
    ids, in the weights' dtype and on their device. Every method is built on this function.

    The engines separate, dense and tree give equal bits where docs/bits.md says so; plain is within
    rounding of them. Raises InputError for an unknown engine, a prompt beyond the model's
    positions, or token ids beyond its vocabulary.
    """
    if engine not in ENGINES:
        raise InputError(f'engine "{engine}" is unknown; use one of {", ".join(ENGINES)}')
    check_fit(lm.name, lm.config, prefix, branches, columns or ())
    ends = lm.branch_ends(prefix, branches, engine)
    # plain stays the definition to the end: the output matrix in one product.
    return _read_logits(lm, ends, columns, lm.decoder.logits if engine == "plain" else lm.logits)


@torch.inference_mode()
def layout_logits(
    lm: LanguageModel, layout: Layout, columns: Sequence[int] | None = None
) -> Tensor:
    """The logits at the ends of any layout, run with its mask as it is: (G, V) or (G, C)."""
    return _read_logits(lm, lm.layout_ends(layout), columns, lm.logits)


def _read_logits(
    lm: LanguageModel, ends: Tensor, columns: Sequence[int] | None, read: Callable[..., Tensor]
) -> Tensor:
    ids = None if columns is None else torch.tensor(list(columns), device=ends.device)
    logits = read(ends, ids)
    check_finite(lm.name, logits, ends)
    return logits


# The engines. (The engine tree is `exact.read_ends`.)


def plain_states(lm: LanguageModel, layout: Layout) -> Tensor:
    """Hidden states (T, D) of a layout by `Decoder.forward`, with its mask as it is. Raises
    InputError if the scores of a layer would not fit in memory."""
    check_scores_fit(lm, len(layout.tokens))
    hidden: Tensor = lm.decoder(*_on_device(lm, layout), layout.mask)
    return hidden


def hidden_states(lm: LanguageModel, layout: Layout) -> Tensor:
    """As `plain_states`, in calls of fixed shapes. Raises InputError if the mask would not fit
    in memory."""
    check_mask_fits(len(layout.tokens))
    return exact.forward(lm.decoder, *_on_device(lm, layout), layout.mask)


def run_alone(lm: LanguageModel, prompt: Sequence[int]) -> Tensor:
    """Hidden states (T, D) of one prompt in a causal run: what every engine must equal."""
    T, device = len(prompt), lm.decoder.device
    tokens = torch.tensor(prompt, device=device)
    return exact.forward(lm.decoder, tokens, torch.arange(T, device=device), causal_mask(T))


def _on_device(lm: LanguageModel, layout: Layout) -> tuple[Tensor, Tensor]:
    return layout.tokens.to(lm.decoder.device), layout.positions.to(lm.decoder.device)


def token_counts(prefix: Sequence[int], branches: Sequence[Sequence[int]]) -> dict[str, int]:
    """How many tokens each engine runs for these prompts, by its name."""
    in_branches = sum(map(len, branches))
    return {
        "separate": len(prefix) * len(branches) + in_branches,
        "dense": len(prefix) + in_branches,
        "plain": len(prefix) + in_branches,
        "tree": len(pack(prefix, branches, tree=True).tokens),
    }


# Checks before and after a run. A first reading can leave them out.


def check_length(lm: LanguageModel, question: Question) -> None:
    """Raise InputError for a question far beyond the model's positions, before many prompts that
    repeat its text are written and encoded."""
    text = f"{question.text}\n{max(question.choices, key=len)}"
    if len(text) > 4 * lm.config.max_position_embeddings:
        check_fit(lm.name, lm.config, lm.tokenizer.encode([text])[0], [[]])


def check_fit(
    name: str,
    config: Config,
    prefix: Sequence[int],
    branches: Sequence[Sequence[int]],
    columns: Sequence[int] = (),
) -> None:
    """Raise InputError for an empty prompt, a token id or a column of the logits beyond the model's
    vocabulary, and Unsuited, also an InputError, for a prompt beyond its positions."""
    if not prefix and not all(branches):
        raise InputError(f"the tokenizer of {name} makes no token of a prompt; use another")
    longest, limit = len(prefix) + max(map(len, branches)), config.max_position_embeddings
    if longest > limit:
        raise Unsuited(
            f"a prompt has {longest} tokens, but {name} has positions for {limit}; "
            "shorten the question or its choices, or use smaller groups"
        )
    largest = max(max(ids, default=0) for ids in [prefix, *branches, columns])
    if largest >= config.vocab_size:
        raise InputError(
            f"token id {largest} is beyond the vocabulary of {name} "
            f"(vocab_size {config.vocab_size}); its tokenizer.json belongs to another model"
        )


def check_scores_fit(lm: LanguageModel, tokens: int) -> None:
    """Raise InputError if the scores of a layer, at least float32, would not fit in memory."""
    check_mask_fits(tokens, lm.config.num_attention_heads * max(4, lm.decoder.dtype.itemsize))


def check_mask_fits(tokens: int, score_bytes: int = 0) -> None:
    """Raise InputError if a dense mask of `tokens` squared cells, one byte each, would not fit in
    memory, together with `score_bytes` for each cell, twice: before and after the softmax."""
    free = free_bytes(torch.device("cpu"))  # masks are made there
    size = tokens**2 * (1 + 2 * score_bytes)
    if free is not None and size > free:
        both = " and scores" if score_bytes else ""
        raise InputError(
            f"{tokens:,} packed tokens need a mask{both} of {tokens**2:,} cells, "
            f"{size / 2**30:.1f} GiB, and {free / 2**30:.1f} GiB are free; use the engine tree"
        )


def check_finite(name: str, logits: Tensor, ends: Tensor) -> None:
    """Raise InputError for numbers that overflowed. Where the squares in the norm overflowed, a row
    of hidden states is all zeros."""
    if not (logits.isfinite().all() and ends.any(dim=1).all()):
        remedy = "its weights are too large; fetch them again"
        if logits.dtype == torch.float16:
            remedy = "use bfloat16 or float32"
        raise InputError(f"{name}: its numbers overflow {logits.dtype}; {remedy}")
