"""Four engines: ways to compute the logits after each prompt of a question.

    plain     the paper's packed sequence in one call with its mask (Section 4)
    separate  every prompt alone under a causal mask (Section 3.2): the other definition
    dense     the packed sequence, by the decoder whose bits do not depend on what runs together
    tree      common beginnings merged, only the work that the mask allows: the fast one

The results of the last three are equal bit for bit where docs/verify.md says so; plain is within
rounding of them. How is the subject of minise/equal_bits/, which a first reading can leave out.
The readout (Section 4.3, Eq. 6) starts here: the logits are those at the end of each branch.

Next to read: method.py, which makes an answer of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial

import torch
from torch import Tensor

from minise.checks import check_finite, check_mask_fits, check_name, check_prompts
from minise.config import Config
from minise.equal_bits import run as exact
from minise.equal_bits.layers import refine
from minise.layout import Layout, causal_mask, pack
from minise.model import Decoder
from minise.tokenizer import Tokenizer

Ids = Sequence[int]


@dataclass(frozen=True, eq=False)
class LanguageModel:
    """A loaded checkpoint. `name` is the folder or hub id, `revision` the hub's commit hash."""

    name: str
    config: Config
    decoder: Decoder = field(repr=False)
    tokenizer: Tokenizer = field(repr=False)
    revision: str | None = None
    elsewhere: Callable[..., Tensor] | None = None  # gives branch_logits: minise/serving/

    @cached_property
    def refined(self) -> Decoder:
        """A second decoder over the same parameters (minise/equal_bits/): a token's result does not
        depend, even in its bits, on the tokens beside it."""
        return refine(self.decoder)


def on(lm: LanguageModel, *tensors: Tensor) -> tuple[Tensor, ...]:
    """The tensors on the model's device."""
    return tuple(tensor.to(lm.decoder.device) for tensor in tensors)


@torch.inference_mode()
def layout_ends(lm: LanguageModel, layout: Layout) -> Tensor:
    """Hidden states (G, D) at the ends of any layout, run with its mask as it is."""
    check_mask_fits(len(layout.tokens))
    tokens, positions, ends = on(lm, layout.tokens, layout.positions, layout.ends)
    return exact.forward(lm.refined, tokens, positions, layout.mask)[ends]


def run_alone(lm: LanguageModel, prompt: Ids) -> Tensor:
    """Hidden states (T, D) of one prompt in a causal run."""
    tokens, positions = on(lm, torch.tensor(prompt), torch.arange(len(prompt)))
    return exact.forward(lm.refined, tokens, positions, causal_mask(len(prompt)))


# Each engine gives the hidden states after the final norm at the end of each prompt prefix +
# branch: (G, D).


def plain(lm: LanguageModel, prefix: Ids, branches: Sequence[Ids]) -> Tensor:
    layout = pack(prefix, branches)
    score_bytes = lm.config.num_attention_heads * max(4, lm.decoder.dtype.itemsize)
    check_mask_fits(len(layout.tokens), score_bytes)
    tokens, positions, ends = on(lm, layout.tokens, layout.positions, layout.ends)
    hidden: Tensor = lm.decoder(tokens, positions, layout.mask)
    return hidden[ends]


def separate(lm: LanguageModel, prefix: Ids, branches: Sequence[Ids]) -> Tensor:
    return torch.stack([run_alone(lm, [*prefix, *branch])[-1] for branch in branches])


def dense(lm: LanguageModel, prefix: Ids, branches: Sequence[Ids]) -> Tensor:
    return layout_ends(lm, pack(prefix, branches))


def tree(lm: LanguageModel, prefix: Ids, branches: Sequence[Ids]) -> Tensor:
    return exact.read_ends(lm.refined, pack(prefix, branches, tree=True))


ENGINES: dict[str, Callable[[LanguageModel, Ids, Sequence[Ids]], Tensor]] = {
    "tree": tree,
    "dense": dense,
    "separate": separate,
    "plain": plain,
}


@torch.inference_mode()
def branch_logits(
    lm: LanguageModel,
    prefix: Ids,
    branches: Sequence[Ids],
    engine: str = "tree",
    columns: Ids | None = None,
    total: bool = False,
) -> Tensor:
    """The logits after each prompt `prefix + branch`: (G, V), or (G, len(columns)) for those token
    ids, in the weights' dtype and on their device. Every method is built on this function.
    total: one column more, at least float32: the log of the sum of exp over the vocabulary.

    Raises InputError for an unknown engine, a prompt beyond the model's positions, or token ids
    beyond its vocabulary.
    """
    check_name("engine", engine, ENGINES)
    check_prompts(lm, prefix, branches, columns or ())
    if lm.elsewhere is not None:
        return lm.elsewhere(prefix, branches, columns, total)
    hidden = ENGINES[engine](lm, prefix, branches)
    return read_logits(lm, hidden, columns, total, is_plain=engine == "plain")


@torch.inference_mode()
def read_logits(
    lm: LanguageModel,
    hidden: Tensor,
    columns: Ids | None = None,
    total: bool = False,
    is_plain: bool = False,
) -> Tensor:
    """The logits of hidden states (G, D), as `branch_logits` gives them."""
    ids = None if columns is None else torch.tensor(list(columns), device=hidden.device)
    read = lm.decoder.logits if is_plain else partial(exact.logits, lm.refined)
    logits = read(hidden, ids)
    check_finite(lm, logits, hidden)
    if not total:
        return logits
    wide = torch.promote_types(logits.dtype, torch.float32)
    # In parts: with many prompts, the logits of the whole vocabulary would fill the memory.
    parts = [logits] if ids is None else map(read, hidden.split(64))
    totals = torch.cat([part.to(wide).logsumexp(dim=-1, keepdim=True) for part in parts])
    return torch.cat([logits, totals], dim=-1)


def token_counts(prefix: Ids, branches: Sequence[Ids]) -> dict[str, int]:
    """How many tokens each engine runs for these prompts, by its name."""
    packed = len(prefix) + sum(map(len, branches))
    alone = packed + len(prefix) * (len(branches) - 1)
    merged = len(pack(prefix, branches, tree=True).tokens)
    return {"separate": alone, "dense": packed, "tree": merged, "plain": packed}
