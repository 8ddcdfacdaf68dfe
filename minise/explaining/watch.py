"""What the page needs to see inside a model, and how minise's own decoder shows it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from minise.checking.recording import record
from minise.checking.traces import Trace, pick, trace
from minise.engines import LanguageModel, branch_logits, run_alone
from minise.layout import Layout
from minise.method import Plan


class Alone(NamedTuple):
    """One prompt, run by itself. trace: of its T tokens; empty if the model does not show it.
    weights: (L, heads, T, T), how much each token reads each other one; None if not shown.
    readouts: for each layer, the probabilities of the labels as read after it; empty if not shown.
    """

    trace: Trace
    weights: Tensor | None
    readouts: list[list[float]]


class Watch(Protocol):
    """One model under observation. engine: by which the answers are computed, as in `data.Data`.
    heads: how many heads show their attention. positions: how many there are. windows: of its
    layers, in positions. left_out: what the model does not show, in sentences."""

    engine: str
    heads: int
    positions: float
    windows: list[int]
    left_out: list[str]

    def alone(self, prompt: list[int], label_ids: Sequence[int]) -> Alone:
        """Run one prompt by itself."""

    def readouts(self, rows: Tensor, label_ids: Sequence[int]) -> list[list[float]]:
        """The probabilities of the labels as read from the rows (L, D) of one token, one after each
        layer; empty if the model does not show them."""

    def weights(self, layout: Layout) -> Tensor:
        """(L, heads, T, T): how much each token of a layout reads each other one. Raises InputError
        if the model does not show them."""

    def packed(self, run: Callable[[], object]) -> Trace:
        """The rows of the one pass in `run`."""

    def tree(self, plan: Plan, rows: Sequence[int]) -> Trace:
        """What the tree engine computes for each packed token, in the order of the packed sequence.
        `rows`: where these tokens stand in the tree. The top layer and the final norm may have the
        groups' ends only."""


class OwnModel:
    """The `Watch` of minise's own decoder, which shows everything."""

    engine = "tree"
    positions = math.inf  # its angles are computed

    def __init__(self, lm: LanguageModel) -> None:
        self.lm, self.heads = lm, lm.config.num_attention_heads
        self.windows = sorted({w for w in lm.config.sliding_windows if w is not None})
        self.left_out: list[str] = []

    def alone(self, prompt: list[int], label_ids: Sequence[int]) -> Alone:
        with record(self.lm.decoder, attention=True) as recording:
            hidden = run_alone(self.lm, prompt)
        layers = [recording.residual[layer][0] for layer in sorted(recording.residual)]
        attention = [recording.attention[layer][0] for layer in sorted(recording.attention)]
        readouts = self.readouts(torch.stack([rows[-1] for rows in layers]), label_ids)
        return Alone([*layers, hidden], torch.stack(attention), readouts)

    def readouts(self, rows: Tensor, label_ids: Sequence[int]) -> list[list[float]]:
        # Read out after each layer as after the last: by the final norm and the output matrix.
        normed = self.lm.decoder.model.norm(rows)
        columns = torch.tensor(label_ids, device=normed.device)
        logits = self.lm.logits(normed, columns).double()
        return logits.softmax(dim=-1).tolist()

    def weights(self, layout: Layout) -> Tensor:
        with record(self.lm.decoder, attention=True) as recording:
            self.lm.layout_ends(layout)
        layers = [recording.attention[layer][0] for layer in sorted(recording.attention)]
        return torch.stack(layers)

    def packed(self, run: Callable[[], Any]) -> Trace:
        return trace(self.lm.decoder, run)[0]

    def tree(self, plan: Plan, rows: Sequence[int]) -> Trace:
        labels = plan.prompts[0].label_ids
        run = partial(branch_logits, self.lm, plan.prefix, plan.branches, "tree", labels)
        return pick(self.packed(run), rows, range(len(plan.prompts)))
