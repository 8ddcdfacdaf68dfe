"""What the model does on the prompts of a page: each run alone, and packed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from minise.engines import LanguageModel, branch_logits, layout_ends, read_logits, run_alone
from minise.layout import Layout, Tree
from minise.method import Plan
from minise.verify.recording import record
from minise.verify.traces import Trace, pick, row_sizes, trace


@dataclass(frozen=True, eq=False)
class Alone:
    """Each prompt of a plan, run by itself. trace: hidden states in the order of the packed
    sequence, which has the prefix once. lens: for each group, after each layer, the probabilities
    of its labels. attention: as in `data.Data`."""

    trace: Trace
    lens: list[list[list[float]]]
    attention: Any


@torch.inference_mode()
def run_each_alone(lm: LanguageModel, plan: Plan, tree: Tree, every_head: bool) -> Alone:
    """Run each prompt with everything recorded.

    Attention is recorded here, because a record of the whole packed sequence would take T * T
    numbers for each head. The packed run's is the same: `compare` shows it.
    """
    streams: list[Trace] = []
    attention: dict[int, Any] = {}  # by row of the tree
    lens = []
    for path, prompt in zip(tree.paths(), plan.prompts, strict=True):
        with record(lm.refined, attention=True) as recording:
            hidden = run_alone(lm, plan.prefix + prompt.ids)
        layers = [rows[0] for rows in by_layer(recording.residual)]
        start = len(plan.prefix) if streams else 0  # the packed sequence has the prefix once
        streams.append([rows[start:] for rows in (*layers, hidden)])
        lens.append(readouts(lm, torch.stack([rows[-1] for rows in layers]), prompt.label_ids))
        steps = in_steps(recording.attention, every_head)
        for position, row in enumerate(path):  # a row that another prompt has added stays
            attention.setdefault(row, steps[:, :, position, : position + 1].ravel())
    cells = np.concatenate([attention[row] for row in sorted(attention)])
    return Alone([torch.cat(rows) for rows in zip(*streams, strict=True)], lens, cells)


def run_packed(lm: LanguageModel, plan: Plan, rows_of_tree: list[int]) -> dict[str, Trace]:
    """The hidden states of the packed sequence's tokens by both engines. `rows_of_tree`: the result
    of `tree_rows`. The tree engine's top layer and final norm have the groups' ends only."""
    columns = plan.prompts[0].label_ids

    def run(engine: str) -> Trace:
        branches = plan.prefix, plan.branches, engine, columns
        return trace(lm.refined, lambda: branch_logits(lm, *branches))[0]

    return {
        "dense": run("dense"),
        "tree": pick(run("tree"), rows_of_tree, range(len(plan.prompts))),
    }


def readouts(lm: LanguageModel, rows: Tensor, label_ids: Sequence[int] | None) -> list[list[float]]:
    """The probabilities of the labels as read from the rows (L, D) of one token, one after each
    layer: as after the last, by the final norm and the output matrix."""
    logits = read_logits(lm, lm.refined.model.norm(rows), label_ids)
    values: list[list[float]] = logits.double().softmax(dim=-1).tolist()
    return values


@torch.inference_mode()
def attention_weights(lm: LanguageModel, layout: Layout) -> dict[int, Tensor]:
    """For each layer (1, heads, T, T): how much each token of a layout reads each other one."""
    with record(lm.refined, attention=True) as recording:
        layout_ends(lm, layout)
    return recording.attention


def in_steps(attention: dict[int, Tensor], every_head: bool) -> Any:
    """Weights (1, heads, T, T) of each layer as uint8 (L, heads, T, T) in steps of 1/255; of all
    heads, or of their mean."""
    weights = torch.cat(by_layer(attention))
    if not every_head:
        weights = weights.mean(dim=1, keepdim=True)
    return (weights.float() * 255).round().byte().cpu().numpy()


def by_layer(recorded: dict[int, Tensor]) -> list[Tensor]:
    """What was recorded, from the first layer to the last."""
    return [recorded[layer] for layer in sorted(recorded)]


def tree_rows(flat: Tree, tree: Tree) -> list[int]:
    """For each row of the packed sequence, the row of the tree that is the same token."""
    rows: dict[int, int] = {}
    for flat_path, tree_path in zip(flat.paths(), tree.paths(), strict=True):
        rows |= dict(zip(flat_path, tree_path, strict=True))
    return [rows[row] for row in range(len(flat.tokens))]


def compare(alone: Trace, packed: Trace, ends: Tensor) -> tuple[Any, bool]:
    """(T, L + 1) float32: how far each packed token's row is from its separate run's, as a part of
    its size; and whether all bits are equal. A layer with fewer rows has the ends only, as the tree
    engine's top layer does; its other rows are NaN."""
    columns, equal = [], True
    for a, b in zip(alone, packed, strict=True):
        rows = torch.arange(len(a)) if len(a) == len(b) else ends
        column = torch.full((len(a),), torch.nan, dtype=torch.float64)
        a = a[rows.to(a.device)]
        equal &= torch.equal(a, b)
        column[rows] = (row_sizes(a.double() - b.double()) / row_sizes(a).clamp(min=1e-300)).cpu()
        columns.append(column)
    return torch.stack(columns, dim=1).float().numpy(), equal
