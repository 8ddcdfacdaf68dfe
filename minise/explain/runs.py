"""What the model does on the prompts of a page: each run alone, and packed in four ways."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from minise.engines import LanguageModel, branch_logits, layout_logits, run_alone
from minise.ensemble import Plan
from minise.layout import Tree, causal_mask
from minise.recording import record
from minise.traces import Trace, row_sizes, trace


@dataclass(frozen=True, eq=False)
class Runs:
    """lens: for each group, after each layer, the probabilities of its labels. The others are as in
    `data.Data`."""

    equality: dict[str, Any]
    bitwise: dict[str, bool]
    attention: Any
    lens: list[list[list[float]]]


@torch.inference_mode()
def run_all(
    lm: LanguageModel,
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
        with record(lm.decoder, attention=True) as seen:
            hidden = run_alone(lm, plan.prefix + prompt.ids)
        layers = [seen.residual[layer][0] for layer in sorted(seen.residual)]
        own = len(plan.prefix) if group else 0  # the prefix stands in the packed sequence once
        streams.append([rows[own:] for rows in (*layers, hidden)])
        lens.append(_readouts(lm, [rows[-1] for rows in layers], prompt.label_ids))
        weights = torch.stack([seen.attention[layer][0] for layer in sorted(seen.attention)])
        if not every_head:
            weights = weights.mean(dim=1, keepdim=True)
        steps = (weights.float() * 255).round().byte().cpu().numpy()  # (L, heads, Q, T)
        for position, row in enumerate(path):
            if row not in attention:
                attention[row] = steps[:, :, position, : position + 1].ravel()
    alone = [torch.cat(rows) for rows in zip(*streams, strict=True)]
    del streams
    equality, bitwise = {}, {}
    for name, (run, rows) in _packed_runs(lm, plan, flat, rows_of_tree).items():
        traced, _ = trace(lm.decoder, run)
        ends = flat.ends if name == "tree" else None
        equality[name], bitwise[name] = _compare(alone, traced, rows, ends)
    every = np.concatenate([attention[row] for row in range(len(tree.tokens))])
    return Runs(equality, bitwise, every, lens)


def tree_rows(flat: Tree, tree: Tree) -> list[int]:
    """For each row of the packed sequence, the row of the tree that is the same token."""
    found: dict[int, int] = {}
    for here, there in zip(flat.paths(), tree.paths(), strict=True):
        found |= dict(zip(here, there, strict=True))
    return [found[row] for row in range(len(flat.tokens))]


def _packed_runs(
    lm: LanguageModel, plan: Plan, flat: Tree, rows_of_tree: list[int]
) -> dict[str, Any]:
    """Both engines as they are used, and the ablations of the dense one; with each the row of every
    packed token in it."""
    T = len(flat.tokens)
    columns = plan.prompts[0].label_ids
    engine = partial(branch_logits, lm, plan.prefix, plan.branches, columns=columns)
    without_mask = flat.replace(mask=causal_mask(T))
    without_positions = flat.replace(positions=torch.arange(T))
    same = list(range(T))
    return {
        "dense": (partial(engine, "dense"), same),
        "tree": (partial(engine, "tree"), rows_of_tree),
        "without_mask": (partial(layout_logits, lm, without_mask, columns), same),
        "without_positions": (partial(layout_logits, lm, without_positions, columns), same),
    }


def _compare(alone: Trace, packed: Trace, rows: list[int], ends: Tensor | None) -> tuple[Any, bool]:
    """(T, L + 1) float32: how far each packed token's row is from its separate run's, as a part of
    its size; and whether no bit differs. `ends`: the top layer and the final norm hold these rows
    only, as in the tree engine; the others are NaN there."""
    found, equal = [], True
    for layer, (a, b) in enumerate(zip(alone, packed, strict=True)):
        if ends is not None and layer >= len(alone) - 2:
            here = ends
        else:
            here, b = torch.arange(len(a)), b[torch.tensor(rows, device=b.device)]
        a = a[here.to(a.device)]
        equal &= torch.equal(a, b)
        column = torch.full((len(rows),), torch.nan, dtype=torch.float64)
        column[here] = (row_sizes(a.double() - b.double()) / row_sizes(a).clamp(min=1e-300)).cpu()
        found.append(column)
    return torch.stack(found, dim=1).float().numpy(), equal


def _readouts(lm: LanguageModel, rows: Trace, label_ids: list[int]) -> list[list[float]]:
    """The probabilities of the labels, read out of the stream after each layer as they are read
    after the last: by the final norm and the output matrix."""
    normed = lm.decoder.model.norm(torch.stack(rows))
    columns = torch.tensor(label_ids, device=normed.device)
    logits = lm.decoder.logits(normed, columns).double()
    return logits.softmax(dim=-1).tolist()
