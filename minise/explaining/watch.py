"""How a model runs the prompts of a page, and what it tells of its inside.

minise's own decoder tells everything. A library's model (bridges/watching.py) tells what it can.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from minise.checking.recording import record
from minise.checking.traces import Trace, pick, trace
from minise.engines import LanguageModel, branch_logits, run_alone
from minise.method import Plan


class Alone(NamedTuple):
    """One prompt's run of its own. trace: of its T tokens; empty if the model does not tell.
    weights: (L, heads, T, T), how much each token reads each. readouts: for each layer, the
    probabilities of the labels as read after it; empty if the model does not tell."""

    trace: Trace
    weights: Tensor | None
    readouts: list[list[float]]


class Watch(Protocol):
    """engine: of the answers, as in `data.Data`. heads: of how many it tells the attention.
    windows: of its layers, in positions. left_out: what the model does not tell, in sentences."""

    engine: str
    heads: int
    windows: list[int]
    left_out: list[str]

    def alone(self, prompt: list[int], label_ids: Sequence[int]) -> Alone: ...

    def packed(self, run: Callable[[], object]) -> Trace:
        """The rows of the one pass in `run`."""

    def tree(self, plan: Plan, rows: Sequence[int]) -> Trace:
        """What the tree engine computes for each packed token, in their order. `rows`: where they
        stand in the tree. The top layer and the final norm may have the groups' ends only."""


@torch.inference_mode()
def watched(lm: LanguageModel, prompt: list[int]) -> Watch:
    """The `Watch` of a model. `prompt`: one to try what it tells."""
    if hasattr(lm, "library"):
        found: Watch = lm.library.watched(prompt)
        return found
    return _Own(lm)


class _Own:
    """minise's own decoder, which tells everything."""

    engine = "tree"

    def __init__(self, lm: LanguageModel) -> None:
        self.lm, self.heads = lm, lm.config.num_attention_heads
        self.windows = sorted({w for w in lm.config.sliding_windows if w is not None})
        self.left_out: list[str] = []

    def alone(self, prompt: list[int], label_ids: Sequence[int]) -> Alone:
        with record(self.lm.decoder, attention=True) as seen:
            hidden = run_alone(self.lm, prompt)
        layers = [seen.residual[layer][0] for layer in sorted(seen.residual)]
        weights = torch.stack([seen.attention[layer][0] for layer in sorted(seen.attention)])
        # Read out after each layer as after the last: by the final norm and the output matrix.
        normed = self.lm.decoder.model.norm(torch.stack([rows[-1] for rows in layers]))
        columns = torch.tensor(label_ids, device=normed.device)
        logits = self.lm.logits(normed, columns).double()
        return Alone([*layers, hidden], weights, logits.softmax(dim=-1).tolist())

    def packed(self, run: Callable[[], Any]) -> Trace:
        return trace(self.lm.decoder, run)[0]

    def tree(self, plan: Plan, rows: Sequence[int]) -> Trace:
        asked = (plan.prefix, plan.branches, "tree", plan.prompts[0].label_ids)
        return pick(
            self.packed(partial(branch_logits, self.lm, *asked)), rows, range(len(plan.prompts))
        )
