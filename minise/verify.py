"""Packed against separate, token by token and layer by layer (the claim of Section 4).

Every token of every group prompt is run twice: in the packed sequence, and in a plain causal run of
that prompt alone. The two must agree in every hidden state. The same comparison with the mask or
the positional re-encoding left out must not, or the check would prove nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from minise.engines import LanguageModel, hidden_states, run_alone
from minise.ensemble import Plan
from minise.layout import Layout, causal_mask, pack
from minise.meter import check_fit, check_mask_fits
from minise.recording import record
from minise.tree import read_ends


@dataclass(frozen=True)
class Difference:
    """How far a packed run is from the separate ones: the largest absolute difference of a hidden
    state after each layer (the last entry is after the final norm), of a logit (whole vocabulary),
    of a label probability; and the share of groups whose most probable label changed."""

    layers: list[float]
    logits: float
    probabilities: float
    changed: float

    def within(self, tolerance: float) -> bool:
        """Whether nothing differs by more. A NaN is never within."""
        return all(d <= tolerance for d in [*self.layers, self.logits, self.probabilities])


@dataclass(frozen=True)
class Verification:
    """`tokens` counts the prompt tokens compared, the trunk once per group. `ablations` holds the
    packed run "without_mask" (plain causal) and "without_positions" (0, 1, 2, ...).

    passed: every engine within the tolerance, and, where there is more than one group, every
    ablation beyond it."""

    tokens: int
    groups: int
    tolerance: float
    engines: dict[str, Difference]
    ablations: dict[str, Difference]

    @property
    def passed(self) -> bool:
        seen = self.groups == 1 or not any(
            difference.within(self.tolerance) for difference in self.ablations.values()
        )
        return seen and all(d.within(self.tolerance) for d in self.engines.values())


@torch.inference_mode()
def verify(lm: LanguageModel, plan: Plan, tolerance: float | None = None) -> Verification:
    """Compare the packed runs of a plan's prompts with separate runs of each.

    `tolerance` is absolute. By default it is 1e-10 in float64, which only rounding can stay below;
    in float32 64, in a half type 16 units of rounding at the size of the largest hidden state.
    """
    prefix, branches = plan.prefix, plan.branches
    check_fit(lm.name, lm.config, prefix, branches)
    flat, tree = pack(prefix, branches), pack(prefix, branches, tree=True)
    check_mask_fits(lm.decoder, len(flat.tokens))
    prompts = [[*prefix, *branch] for branch in branches]
    separate = [_trace(lm, partial(run_alone, lm, prompt)) for prompt in prompts]
    if tolerance is None:
        dtype = separate[0][0].dtype
        largest = max(float(layer.abs().max()) for trace in separate for layer in trace)
        # The half types round only what is stored: their sums run in float32.
        units = 64 if dtype == torch.float32 else 16
        tolerance = 1e-10 if dtype == torch.float64 else units * torch.finfo(dtype).eps * largest

    paths, T = flat.paths(), len(flat.tokens)

    def dense(layout: Layout) -> Difference:
        trace = _trace(lm, partial(hidden_states, lm, layout))
        return _compare(lm, plan, separate, [[layer[rows] for layer in trace] for rows in paths])

    def merged() -> Difference:
        # The tree engine's top layer holds the ends alone, one row for each branch.
        *below, top, final = _trace(lm, partial(read_ends, lm.decoder, tree))
        packed = [
            [*(layer[rows] for layer in below), top[g : g + 1], final[g : g + 1]]
            for g, rows in enumerate(tree.paths())
        ]
        return _compare(lm, plan, separate, packed)

    return Verification(
        tokens=sum(map(len, prompts)),
        groups=len(branches),
        tolerance=tolerance,
        engines={"dense": dense(flat), "tree": merged()},
        ablations={
            "without_mask": dense(flat.replace(mask=causal_mask(T))),
            "without_positions": dense(flat.replace(positions=torch.arange(T))),
        },
    )


def _trace(lm: LanguageModel, run: Callable[[], Tensor]) -> list[Tensor]:
    """Hidden states (rows, D) after every layer, and after the final norm as `run` returns them."""
    with record(lm.decoder) as seen:
        final = run()
    return [*(seen.residual[layer][0] for layer in range(lm.config.num_hidden_layers)), final]


def _compare(
    lm: LanguageModel,
    plan: Plan,
    separate: Sequence[Sequence[Tensor]],
    packed: Sequence[Sequence[Tensor]],
) -> Difference:
    """Per group and layer, the rows that the packed run holds, against the separate run's last."""
    apart = [
        [float((a[-len(b) :] - b).abs().max()) for a, b in zip(alone, together, strict=True)]
        for alone, together in zip(separate, packed, strict=True)
    ]
    alone, together = (
        lm.decoder.logits(torch.stack([trace[-1][-1] for trace in traces])).double()
        for traces in (separate, packed)
    )
    probabilities, changed = [], 0
    for a, b, prompt in zip(alone, together, plan.prompts, strict=True):
        p, q = (row[prompt.label_ids].softmax(-1) for row in (a, b))
        probabilities.append(float((p - q).abs().max()))
        changed += int(p.argmax() != q.argmax())
    return Difference(
        layers=[_largest(layer) for layer in zip(*apart, strict=True)],
        logits=float((alone - together).abs().max()),
        probabilities=_largest(probabilities),
        changed=changed / len(separate),
    )


def _largest(values: Sequence[float]) -> float:
    # max() of a sequence with a NaN depends on its order.
    return math.nan if any(map(math.isnan, values)) else max(values)
