"""Packed against separate, token by token and layer by layer (the claim of Section 4).

Every token of every group prompt is run twice: in the packed sequence, and in a plain causal run of
that prompt alone. The two must agree in every hidden state. The same comparison with the mask or
the positional re-encoding left out must not, or the check would prove nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from minise.checkpoint import LanguageModel
from minise.ensemble import Plan, check_fit, hidden_states
from minise.layout import Layout, causal_mask, pack

PACKED = ("dense", "tree")


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
    in a narrower dtype 32 units of rounding at the size of the largest hidden state.
    """
    prefix, branches = plan.prompts.prefix, plan.prompts.branches
    check_fit(lm, prefix, branches)
    prompts = [[*prefix, *branch] for branch in branches]
    separate = [
        _trace(lm, torch.tensor(prompt), torch.arange(len(prompt)), causal_mask(len(prompt)))
        for prompt in prompts
    ]
    if tolerance is None:
        dtype = separate[0].dtype
        largest = max(float(trace.abs().max()) for trace in separate)
        tolerance = 1e-10 if dtype == torch.float64 else 32 * torch.finfo(dtype).eps * largest

    def compare(layout: Layout, positions: Tensor, mask: Tensor) -> Difference:
        packed = _trace(lm, layout.tokens, positions, mask)
        paths = [layout.path(branch) for branch in range(len(branches))]
        return _compare(lm, plan, separate, [packed[:, rows] for rows in paths])

    engines = {}
    for engine in PACKED:
        layout = pack(prefix, branches, tree=engine == "tree")
        engines[engine] = compare(layout, layout.positions, layout.mask)
    layout = pack(prefix, branches)
    in_order = torch.arange(len(layout.tokens))
    ablations = {
        "without_mask": compare(layout, layout.positions, causal_mask(len(layout.tokens))),
        "without_positions": compare(layout, in_order, layout.mask),
    }
    tokens = sum(map(len, prompts))
    return Report(tokens, len(branches), tolerance, engines, ablations)


def _trace(lm: LanguageModel, tokens: Tensor, positions: Tensor, mask: Tensor) -> Tensor:
    """Hidden states after every layer and after the final norm: (layers + 1, T, D)."""
    with _recorded(lm.decoder.model.layers) as states:
        final = hidden_states(lm, tokens, positions, mask)
    return torch.stack([state[0] for state in states] + [final])


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
    lm: LanguageModel, plan: Plan, separate: list[Tensor], packed: list[Tensor]
) -> Difference:
    layers = torch.stack(
        [(a - b).abs().amax(dim=(1, 2)) for a, b in zip(separate, packed, strict=True)]
    ).amax(dim=0)
    alone = lm.decoder.logits(torch.stack([trace[-1, -1] for trace in separate])).double()
    together = lm.decoder.logits(torch.stack([trace[-1, -1] for trace in packed])).double()
    probabilities, changed = [], 0
    for a, b, ids in zip(alone, together, plan.prompts.label_ids, strict=True):
        p, q = a[ids].softmax(-1), b[ids].softmax(-1)
        probabilities.append(float((p - q).abs().max()))
        changed += int(p.argmax() != q.argmax())
    return Difference(
        layers=[float(d) for d in layers],
        logits=float((alone - together).abs().max()),
        probabilities=max(probabilities),
        changed=changed / len(separate),
    )
