"""Packed against separate, token by token and layer by layer (the claim of Section 4).

Every token of every group prompt is run twice: in the packed sequence, and in a plain causal run of
that prompt alone. The two must agree in every hidden state. The same comparison with the mask or
the positional re-encoding left out must not, or the check would prove nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from minise.checkpoint import LanguageModel
from minise.ensemble import Plan, check_dense_fits, check_fit, hidden_states, run_alone
from minise.layout import causal_mask, pack
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
class Report:
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
def verify(lm: LanguageModel, plan: Plan, tolerance: float | None = None) -> Report:
    """Compare the packed runs of a plan's prompts with separate runs of each.

    `tolerance` is absolute. By default it is 1e-10 in float64, which only rounding can stay below;
    in float32 64, in a half type 16 units of rounding at the size of the largest hidden state.
    """
    prefix, branches = plan.prompts.prefix, plan.prompts.branches
    check_fit(lm, prefix, branches)
    check_dense_fits(lm, len(prefix) + sum(map(len, branches)))
    prompts = [[*prefix, *branch] for branch in branches]
    separate = [_trace(lm, partial(run_alone, lm, prompt)) for prompt in prompts]
    if tolerance is None:
        dtype = separate[0][0].dtype
        largest = max(float(layer.abs().max()) for trace in separate for layer in trace)
        # The half types round only what is stored: their sums run in float32.
        units = 64 if dtype == torch.float32 else 16
        tolerance = 1e-10 if dtype == torch.float64 else units * torch.finfo(dtype).eps * largest

    flat, tree = pack(prefix, branches), pack(prefix, branches, tree=True)
    mask, paths = flat.mask, flat.paths()
    in_order, causal = torch.arange(len(flat.tokens)), causal_mask(len(flat.tokens))

    def dense(positions: Tensor, mask: Tensor) -> Difference:
        trace = _trace(lm, partial(hidden_states, lm, flat.tokens, positions, mask))
        return _compare(lm, plan, separate, [[layer[rows] for layer in trace] for rows in paths])

    def merged() -> Difference:
        # The tree engine's top layer holds the ends alone, one row for each branch.
        *below, top, final = _trace(lm, partial(read_ends, lm.decoder, tree))
        packed = [
            [*(layer[rows] for layer in below), top[g : g + 1], final[g : g + 1]]
            for g, rows in enumerate(tree.paths())
        ]
        return _compare(lm, plan, separate, packed)

    return Report(
        tokens=sum(map(len, prompts)),
        groups=len(branches),
        tolerance=tolerance,
        engines={"dense": dense(flat.positions, mask), "tree": merged()},
        ablations={
            "without_mask": dense(flat.positions, causal),
            "without_positions": dense(in_order, mask),
        },
    )


def _trace(lm: LanguageModel, run: Callable[[], Tensor]) -> list[Tensor]:
    """Hidden states (rows, D) after every layer, and after the final norm as `run` returns them."""
    with _recorded(lm.decoder.model.layers) as states:
        final = run()
    return [*(state[0] for state in states), final]


@contextmanager
def _recorded(layers: nn.ModuleList) -> Iterator[list[Tensor]]:
    """Collect each layer's output while the block runs, with the model's forward left as it is."""
    states: list[Tensor] = []
    hooks = [
        layer.register_forward_hook(lambda module, given, output: states.append(output))
        for layer in layers
    ]
    try:
        yield states
    finally:
        for hook in hooks:
            hook.remove()


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
    for a, b, ids in zip(alone, together, plan.prompts.label_ids, strict=True):
        p, q = a[ids].softmax(-1), b[ids].softmax(-1)
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
