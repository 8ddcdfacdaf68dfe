"""What the model does on the prompts of a page: each run alone, and packed in four ways."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from minise.checking.traces import Trace, row_sizes
from minise.engines import LanguageModel, branch_logits, layout_logits
from minise.errors import InputError
from minise.explaining.watch import Watch
from minise.layout import Tree, causal_mask
from minise.method import Plan

ABLATIONS = ("without_mask", "without_positions")  # of the engine dense


@dataclass(frozen=True, eq=False)
class Runs:
    """lens: for each group, after each layer, the probabilities of its labels. left_out: which runs
    are not there, and why. The others are as in `data.Data`."""

    equality: dict[str, Any]
    bitwise: dict[str, bool]
    attention: Any
    lens: list[list[list[float]]]
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
    """Run each prompt alone with everything recorded, then all of them packed. `rows_of_tree`: what
    `tree_rows` says.

    Attention is recorded where a prompt runs alone, because a record of the whole packed sequence
    would take T * T numbers for each head. The packed run's is the same: `equality` tells.
    """
    streams: list[Trace] = []
    attention: dict[int, Any] = {}  # by row of the tree
    lens = []
    for group, (path, prompt) in enumerate(zip(tree.paths(), plan.prompts, strict=True)):
        seen = watch.alone(plan.prefix + prompt.ids, prompt.label_ids)
        own = len(plan.prefix) if group else 0  # the prefix stands in the packed sequence once
        streams.append([rows[own:] for rows in seen.trace])
        lens.append(seen.readouts)
        if (weights := seen.weights) is None:
            continue
        if not every_head:
            weights = weights.mean(dim=1, keepdim=True)
        steps = (weights.float() * 255).round().byte().cpu().numpy()  # (L, heads, Q, T)
        for position, row in enumerate(path):
            if row not in attention:
                attention[row] = steps[:, :, position, : position + 1].ravel()
    alone = [torch.cat(rows) for rows in zip(*streams, strict=True)]
    del streams
    equality, bitwise, left_out = {}, {}, []
    runs = _packed_runs(lm, watch, plan, flat, rows_of_tree) if alone else {}
    for name, run in runs.items():
        if name in ABLATIONS and "dense" not in equality:
            continue
        try:
            equality[name], bitwise[name] = _compare(alone, run(), flat.ends)
        except InputError as error:  # the model cannot run so
            both = ", with and without mask and positions," if name == "dense" else ""
            left_out.append(f"The run {name}{both} is left out: {error}.")
    every = np.concatenate([attention[i] for i in sorted(attention)]) if attention else None
    return Runs(equality, bitwise, every, lens, left_out)


def tree_rows(flat: Tree, tree: Tree) -> list[int]:
    """For each row of the packed sequence, the row of the tree that is the same token."""
    found: dict[int, int] = {}
    for here, there in zip(flat.paths(), tree.paths(), strict=True):
        found |= dict(zip(here, there, strict=True))
    return [found[row] for row in range(len(flat.tokens))]


def _packed_runs(
    lm: LanguageModel, watch: Watch, plan: Plan, flat: Tree, rows_of_tree: list[int]
) -> dict[str, Callable[[], Trace]]:
    """Both engines as they are used, and the ablations of the dense one."""
    columns = plan.prompts[0].label_ids
    dense = partial(branch_logits, lm, plan.prefix, plan.branches, "dense", columns)
    masked = flat.replace(mask=causal_mask(len(flat.tokens)))
    placed = flat.replace(positions=torch.arange(len(flat.tokens)))
    runs: dict[str, Callable[[], Trace]] = {"dense": partial(watch.packed, dense)}
    if watch.engine != "separate":
        runs["tree"] = partial(watch.tree, plan, rows_of_tree)
    for name, layout in zip(ABLATIONS, (masked, placed), strict=True):
        runs[name] = partial(watch.packed, partial(layout_logits, lm, layout, columns))
    return runs


def _compare(alone: Trace, packed: Trace, ends: Tensor) -> tuple[Any, bool]:
    """(T, L + 1) float32: how far each packed token's row is from its separate run's, as a part of
    its size; and whether no bit differs. Where a layer has fewer rows, they are the ends', as in
    the tree engine's top; the others are NaN there."""
    found, equal = [], True
    for a, b in zip(alone, packed, strict=True):
        here = torch.arange(len(a)) if len(a) == len(b) else ends
        column = torch.full((len(a),), torch.nan, dtype=torch.float64)
        a = a[here.to(a.device)]
        equal &= torch.equal(a, b)
        column[here] = (row_sizes(a.double() - b.double()) / row_sizes(a).clamp(min=1e-300)).cpu()
        found.append(column)
    return torch.stack(found, dim=1).float().numpy(), equal
