"""What the model does on the prompts of a page: each run alone, and packed in five ways."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from minise.checking.traces import Trace, row_sizes
from minise.engines import LanguageModel, branch_logits
from minise.errors import InputError
from minise.explaining.ablations import AblatedRun, ablated_layouts, run_ablated
from minise.explaining.watch import Watch
from minise.layout import Tree
from minise.method import Plan


@dataclass(frozen=True, eq=False)
class Runs:
    """lens: for each group, after each layer, the probabilities of its labels. ablated: the runs of
    `ablations.ablated_layouts`. left_out: which runs are missing, and why. The other fields are as
    in `data.Data`."""

    equality: dict[str, Any]
    bitwise: dict[str, bool]
    attention: Any
    lens: list[list[list[float]]]
    ablated: dict[str, AblatedRun]
    left_out: list[str]


@torch.inference_mode()
def run_all(
    lm: LanguageModel,
    watch: Watch,
    plan: Plan,
    flat: Tree,
    tree: Tree,
    rows_of_tree: list[int],
    every_head: bool,
) -> Runs:
    """Run each prompt alone with everything recorded, then all of them packed. `rows_of_tree`: the
    result of `tree_rows`.

    Attention is recorded where a prompt runs alone, because a record of the whole packed sequence
    would take T * T numbers for each head. The packed run's is the same: `equality` shows it.
    """
    streams: list[Trace] = []
    attention: dict[int, Any] = {}  # by row of the tree
    lens = []
    for group, (path, prompt) in enumerate(zip(tree.paths(), plan.prompts, strict=True)):
        one = watch.alone(plan.prefix + prompt.ids, prompt.label_ids)
        start = len(plan.prefix) if group else 0  # the packed sequence has the prefix once
        streams.append([rows[start:] for rows in one.trace])
        lens.append(one.readouts)
        if one.weights is not None:
            _add_attention(attention, path, one.weights, every_head)
    alone = [torch.cat(rows) for rows in zip(*streams, strict=True)]
    del streams
    equality, bitwise, ablated, left_out = {}, {}, {}, []
    runs = _packed_runs(lm, watch, plan, rows_of_tree) if alone else {}
    for name, run in runs.items():
        try:
            equality[name], bitwise[name] = _compare(alone, run(), flat.ends)
        except InputError as error:  # the model cannot do this run
            both = ", with and without mask and positions," if name == "dense" else ""
            left_out.append(f"The run {name}{both} is left out: {error}.")
    for name, layout in ablated_layouts(flat).items() if "dense" in equality else ():
        try:
            packed, ablated[name] = run_ablated(lm, watch, plan, layout)
        except InputError as error:
            left_out.append(f"The run {name} is left out: {error}.")
        else:
            equality[name], bitwise[name] = _compare(alone, packed, flat.ends)
    cells = np.concatenate([attention[i] for i in sorted(attention)]) if attention else None
    return Runs(equality, bitwise, cells, lens, ablated, left_out)


def _add_attention(
    attention: dict[int, Any], path: list[int], weights: Tensor, every_head: bool
) -> None:
    """Add the rows of one prompt's weights (L, heads, T, T), in steps of 1/255. `path`: where the
    prompt's tokens stand in the tree. A row that another prompt has added stays."""
    if not every_head:
        weights = weights.mean(dim=1, keepdim=True)
    steps = (weights.float() * 255).round().byte().cpu().numpy()  # (L, heads, Q, T)
    for position, row in enumerate(path):
        if row not in attention:
            attention[row] = steps[:, :, position, : position + 1].ravel()


def tree_rows(flat: Tree, tree: Tree) -> list[int]:
    """For each row of the packed sequence, the row of the tree that is the same token."""
    rows: dict[int, int] = {}
    for flat_path, tree_path in zip(flat.paths(), tree.paths(), strict=True):
        rows |= dict(zip(flat_path, tree_path, strict=True))
    return [rows[row] for row in range(len(flat.tokens))]


def _packed_runs(
    lm: LanguageModel, watch: Watch, plan: Plan, rows_of_tree: list[int]
) -> dict[str, Callable[[], Trace]]:
    """Both engines as they are used."""
    columns = plan.prompts[0].label_ids
    dense = partial(branch_logits, lm, plan.prefix, plan.branches, "dense", columns)
    runs: dict[str, Callable[[], Trace]] = {"dense": partial(watch.packed, dense)}
    if watch.engine != "separate":
        runs["tree"] = partial(watch.tree, plan, rows_of_tree)
    return runs


def _compare(alone: Trace, packed: Trace, ends: Tensor) -> tuple[Any, bool]:
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
