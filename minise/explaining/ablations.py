"""The packed sequence with something wrong: no mask, positions that run on, or both.

They are whole runs of the engine dense, so the page can show what its switches change: answers,
readouts and attention. Nothing of them is computed in the page.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from minise.checking.traces import Trace
from minise.engines import LanguageModel
from minise.errors import InputError
from minise.explaining.answers import answer_part, rounded, rounded_null
from minise.explaining.data import Ablation
from minise.explaining.watch import Watch
from minise.grouping import Groups
from minise.layout import Layout, Tree, causal_mask
from minise.method import Plan, label_logits, mean_answer

# Of attention, in bytes before they are compressed: on top of what the page's other arrays take.
MOST_ABLATED = 500_000


class AblatedRun(NamedTuple):
    """One run. logits: the label logits of each prompt. lens: as in `data.Ablation`."""

    logits: list[Tensor]
    lens: list[list[list[float]]]


def ablated_layouts(flat: Tree) -> dict[str, Layout]:
    """The packed sequence with a causal mask, with positions 0, 1, ..., and with both."""
    mask, positions = causal_mask(len(flat.tokens)), torch.arange(len(flat.tokens))
    return {
        "without_mask": flat.replace(mask=mask),
        "without_positions": flat.replace(positions=positions),
        "without_both": flat.replace(mask=mask, positions=positions),
    }


def run_ablated(
    lm: LanguageModel, watch: Watch, plan: Plan, layout: Layout
) -> tuple[Trace, AblatedRun]:
    """Run the plan in this layout. Raises InputError if the model cannot."""
    if (length := int(layout.positions.max()) + 1) > watch.positions:
        own = f"{lm.name} has {watch.positions:,}"
        raise InputError(f"it needs {length:,} positions, and {own}")
    logits: list[Tensor] = []
    plan = replace(plan, layout=layout)
    trace = watch.packed(lambda: logits.extend(label_logits(lm, plan)))
    lens = []
    for prompt, end in zip(plan.prompts, layout.ends.tolist(), strict=True):
        rows = torch.stack([layer[end] for layer in trace[:-1]])
        lens.append(watch.readouts(rows, prompt.label_ids))
    return trace, AblatedRun(logits, lens)


def groups_that_fit(flat: Tree, layers: int, heads: int, most: int) -> int:
    """Of how many groups, from the first on, the attention of all ablations takes at most this many
    bytes. A token without a mask reads all before it."""
    rows = torch.arange(1, len(flat.tokens) + 1)
    cells = (2 * rows + flat.positions + 1).cumsum(0)[flat.ends] * layers * heads
    return int((cells <= most).sum())


def ablation_part(
    watch: Watch, plan: Plan, layout: Layout, run: AblatedRun, groups: int, every_head: bool
) -> Ablation:
    """What the page shows of a run. `groups`: of so many, from the first on, the attention too."""
    shown = len(run.logits)
    as_one_trial = replace(plan, groups=Groups((tuple(plan.groups.flat[:shown]),)))
    asked, answer = mean_answer(as_one_trial, run.logits).groups, None
    done = _first_trials(plan.groups, shown)
    if done.trials:
        first = replace(plan, groups=done, prompts=plan.prompts[: len(done.flat)])
        answer = answer_part(first, mean_answer(first, run.logits[: len(done.flat)]))
    rows = int(layout.ends[groups - 1]) + 1 if groups else 0
    return {
        "probabilities": [rounded(group.probabilities.tolist()) for group in asked],
        "nulls": [rounded_null(group.null) for group in asked],
        "lens": [[rounded(row) for row in readout] for readout in run.lens],
        "self_ensemble": answer,
        "rows": rows,
        "attention": _attention(watch, layout, rows, every_head) if rows else None,
    }


def _first_trials(groups: Groups, shown: int) -> Groups:
    """The trials whose groups are all among the first `shown` ones."""
    ends = [end for end in accumulate(map(len, groups.trials)) if end <= shown]
    complete = groups.complete and len(ends) == len(groups.trials)
    weights = None if groups.weights is None or not ends else groups.weights[: ends[-1]]
    return replace(groups, trials=groups.trials[: len(ends)], weights=weights, complete=complete)


@torch.inference_mode()
def _attention(watch: Watch, layout: Layout, rows: int, every_head: bool) -> Any:
    """uint8, in steps of 1/255, for each of the first rows: (L, heads, what its mask shows). They
    see no later row, so the rest of the sequence need not run."""
    ends = layout.ends[layout.ends < rows]
    mask = layout.mask[:rows, :rows]
    first = Layout(layout.tokens[:rows], layout.positions[:rows], mask, ends)
    weights = watch.weights(first)
    if not every_head:
        weights = weights.mean(dim=1, keepdim=True)
    steps = (weights.float() * 255).round().byte().cpu().numpy()  # (L, heads, rows, rows)
    visible = mask.numpy()
    return np.concatenate([steps[:, :, row, visible[row]].ravel() for row in range(rows)])
