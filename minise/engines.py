"""Three ways to the logits after each prompt of a question.

separate: every prompt alone, plain causal; the definition. dense: the packed sequence with an
explicit mask and positions; the paper's single pass. tree: common prefixes merged, and only the
work that the mask allows; the fast one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from minise.attention import tree_reader
from minise.config import Config
from minise.errors import InputError
from minise.layout import Layout, Tree, causal_mask, pack
from minise.meter import check_fit, check_mask_fits
from minise.model import Decoder
from minise.names import ENGINES
from minise.tokenizer import Tokenizer


@dataclass(frozen=True, eq=False)
class LanguageModel:
    """A loaded checkpoint. `name` is what was asked for, `revision` the hub's commit hash.

    Its methods are how prompts run. A model that runs them in another way overrides them.
    """

    name: str
    config: Config
    decoder: Decoder
    tokenizer: Tokenizer
    revision: str | None = None

    def branch_ends(
        self, prefix: Sequence[int], branches: Sequence[Sequence[int]], engine: str
    ) -> Tensor:
        """Hidden states after the final norm at each prompt's end: (G, D)."""
        if engine == "dense":
            return self.layout_ends(pack(prefix, branches))
        if engine == "tree":
            return read_ends(self.decoder, pack(prefix, branches, tree=True))
        return torch.stack([run_alone(self, [*prefix, *branch])[-1] for branch in branches])

    def layout_ends(self, layout: Layout) -> Tensor:
        """The same at the ends of any layout, run with its mask as it is."""
        hidden = hidden_states(self, layout)
        return hidden[layout.ends.to(hidden.device)]

    def counted_as(self, engine: str) -> str:
        """The engine whose layout has the tokens that run."""
        return engine


@torch.inference_mode()
def branch_logits(
    lm: LanguageModel,
    prefix: Sequence[int],
    branches: Sequence[Sequence[int]],
    engine: str = "tree",
    columns: Sequence[int] | None = None,
) -> Tensor:
    """The logits after each prompt `prefix + branch`: (G, V), or (G, len(columns)) for those token
    ids, in the weights' dtype and on their device. The primitive under every method.

    On a CPU the engines' numbers are equal bit for bit. Raises InputError for an unknown engine, a
    prompt beyond the model's positions, or token ids beyond its vocabulary.
    """
    if engine not in ENGINES:
        raise InputError(f'engine "{engine}" is unknown; use one of {", ".join(ENGINES)}')
    check_fit(lm.name, lm.config, prefix, branches, columns or ())
    return _logits(lm, lm.branch_ends(prefix, branches, engine), columns)


@torch.inference_mode()
def layout_logits(
    lm: LanguageModel, layout: Layout, columns: Sequence[int] | None = None
) -> Tensor:
    """The logits at the ends of any layout, run with its mask as it is: (G, V) or (G, C)."""
    return _logits(lm, lm.layout_ends(layout), columns)


def read_ends(decoder: Decoder, tree: Tree) -> Tensor:
    """Hidden states after the final norm at the tree's ends: (G, D). Everything but attention is
    done once for each distinct token, and in the top layer for the ends only."""
    device, windows = decoder.device, decoder.config.sliding_windows
    ends, tokens, positions = (x.to(device) for x in (tree.ends, tree.tokens, tree.positions))
    reader = tree_reader(tree, windows, device)
    return decoder.run(tokens[None], positions[None], reader.attend, rows=ends)[0]


def hidden_states(lm: LanguageModel, layout: Layout) -> Tensor:
    """Hidden states (T, D) of a layout, on the weights' device. Raises InputError if its mask would
    not fit in memory."""
    check_mask_fits(len(layout.tokens))
    tokens, positions = (x.to(lm.decoder.device) for x in (layout.tokens, layout.positions))
    hidden: Tensor = lm.decoder(tokens, positions, layout.mask)
    return hidden


def run_alone(lm: LanguageModel, prompt: Sequence[int]) -> Tensor:
    """Hidden states (T, D) of one prompt in a plain causal run: what every engine must equal."""
    T, device = len(prompt), lm.decoder.device
    tokens = torch.tensor(prompt, device=device)
    hidden: Tensor = lm.decoder(tokens, torch.arange(T, device=device), causal_mask(T))
    return hidden


def token_counts(prefix: Sequence[int], branches: Sequence[Sequence[int]]) -> dict[str, int]:
    """How many tokens each engine runs for these prompts, by its name."""
    own = sum(map(len, branches))
    return {
        "separate": len(prefix) * len(branches) + own,
        "dense": len(prefix) + own,
        "tree": len(pack(prefix, branches, tree=True).tokens),
    }


def _logits(lm: LanguageModel, ends: Tensor, columns: Sequence[int] | None) -> Tensor:
    wanted = None if columns is None else torch.tensor(list(columns), device=ends.device)
    logits = lm.decoder.logits(ends, wanted)
    check_finite(lm.name, logits, ends)
    return logits


def check_finite(name: str, logits: Tensor, ends: Tensor) -> None:
    """Raise InputError for numbers that overflowed. A row of zeros: the norm's squares did."""
    if not (logits.isfinite().all() and ends.any(dim=1).all()):
        remedy = "its weights are too large; fetch them again"
        if logits.dtype == torch.float16:
            remedy = "use bfloat16 or float32"
        raise InputError(f"{name}: its numbers overflow {logits.dtype}; {remedy}")
