"""The packed sequence with something wrong: no mask, positions that run on, or both.

They are whole runs in the calls of the engine dense, so the page can show what its switches change:
answers, readouts and attention. Nothing of them is computed in the page.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate
from typing import Any

import numpy as np
import torch

from minise.engines import LanguageModel
from minise.explaining.answers import answer_part, rounded, rounded_null
from minise.explaining.data import Ablation
from minise.explaining.runs import attention_weights, in_steps, readouts
from minise.grouping import Groups
from minise.layout import Layout, Tree, causal_mask
from minise.method import Method, Plan, label_logits
from minise.verify.traces import Trace, trace

# Of attention, in bytes before they are compressed: on top of what the page's other arrays take.
MOST_ABLATED = 500_000


def ablated_layouts(flat: Tree) -> dict[str, Layout]:
    """The packed sequence with a causal mask, with positions 0, 1, ..., and with both."""
    mask, positions = causal_mask(len(flat.tokens)), torch.arange(len(flat.tokens))
    return {
        "without_mask": flat.replace(mask=mask),
        "without_positions": flat.replace(positions=positions),
        "without_both": flat.replace(mask=mask, positions=positions),
    }


@torch.inference_mode()
def run_ablated(
    lm: LanguageModel, plan: Plan, layout: Layout, groups: int, every_head: bool
) -> tuple[Trace, Ablation]:
    """Run the plan in this layout: its hidden states, and what the page shows of them. `groups`: of
    so many, from the first on, the attention too."""
    states, logits = trace(lm.refined, lambda: label_logits(lm, replace(plan, layout=layout)))
    lens = []
    for prompt, end in zip(plan.prompts, layout.ends.tolist(), strict=True):
        rows = torch.stack([layer[end] for layer in states[:-1]])
        lens.append([rounded(row) for row in readouts(lm, rows, prompt.label_ids)])
    one_trial = replace(plan, groups=Groups((tuple(plan.groups.flat[: len(logits)]),)))
    asked, answer = Method().answer(one_trial, logits).groups, None
    whole = first_trials(plan.groups, len(logits))
    if whole.trials:
        count = len(whole.flat)
        first = replace(plan, groups=whole, prompts=plan.prompts[:count])
        answer = answer_part(first, Method().answer(first, logits[:count]))
    rows_shown = int(layout.ends[groups - 1]) + 1 if groups else 0
    return states, {
        "probabilities": [rounded(group.probabilities.tolist()) for group in asked],
        "nulls": [rounded_null(group.null) for group in asked],
        "lens": lens,
        "self_ensemble": answer,
        "rows": rows_shown,
        "attention": _attention(lm, layout, rows_shown, every_head) if groups else None,
    }


def groups_that_fit(flat: Tree, layers: int, heads: int, most: int) -> int:
    """Of how many groups, from the first on, the attention of all ablations takes at most this many
    bytes. A token without a mask reads all before it."""
    rows = torch.arange(1, len(flat.tokens) + 1)
    cells = (2 * rows + flat.positions + 1).cumsum(0)[flat.ends] * layers * heads
    return int((cells <= most).sum())


def first_trials(groups: Groups, shown: int) -> Groups:
    """The trials whose groups are all among the first `shown` ones."""
    ends = [end for end in accumulate(map(len, groups.trials)) if end <= shown]
    weights = None if groups.weights is None or not ends else groups.weights[: ends[-1]]
    return Groups(groups.trials[: len(ends)], weights)


def _attention(lm: LanguageModel, layout: Layout, rows: int, every_head: bool) -> Any:
    """uint8, in steps of 1/255, for each of the first rows: (L, heads, what its mask shows). They
    see no later row, so the rest of the sequence need not run."""
    ends, mask = layout.ends[layout.ends < rows], layout.mask[:rows, :rows]
    first = Layout(layout.tokens[:rows], layout.positions[:rows], mask, ends)
    steps = in_steps(attention_weights(lm, first), every_head)  # (L, heads, rows, rows)
    visible = mask.numpy()
    return np.concatenate([steps[:, :, row, visible[row]].ravel() for row in range(rows)])
