"""Compare packed runs with separate runs, token by token and layer by layer (Section 4's claim).

Every token of every group prompt is run twice: in a packed sequence, and in a plain causal run of
that prompt alone. Three things are checked.

Bits: if the numbers of rows that share their bits were found for this machine (docs/bits.md), then
dense, tree and separate must be equal bit for bit: hidden states, logits and label logits.

Numbers: every engine must be within this model's own rounding, and in float64 within 1e-10, so that
rounding hides no fault. The engine plain computes by the definition, the others in the calls of
minise/exact/. So a fault that all of the others share shows up in the comparison with plain.

Influence: what a group must not see cannot change its rows (influence.py).

The same comparison without the mask, or without the positional re-encoding, must fail. If it does
not, the question cannot show a fault, and the check proves nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from minise.checking.comparison import ENGINES, SAME, Bounds, Difference, compare
from minise.checking.influence import Influence, influence
from minise.engines import LanguageModel, check_fit, check_mask_fits
from minise.exact.layers import is_refined
from minise.exact.machine import facts_and_threads
from minise.method import Plan

# How many times the model's own rounding may separate two runs of one prompt. Measured in the half
# types, on the shipped checkpoints: a sound engine with one unit of noise after every attention and
# MLP came to 3.3 times, an engine with every group position off by one to 17 times or more.
FACTOR = 6


@dataclass(frozen=True)
class Verification:
    """The result of `verify`.

    tokens: how many prompt tokens were compared, the prefix once per group. sizes: of the smallest
    and the largest row of each layer, then of the logits. engines: "dense", "tree" and "plain".
    wide: the same in float64, for some of the prompts; empty if the model computes in float64.
    ablations: the packed runs "without_mask" (plain causal) and "without_positions" (0, 1, 2, ...).
    machine: the device, the processor, and what else decides how it rounds.

    promised: this machine's kernels give dense, tree and separate equal bits. required: the bits
    must be equal even if that is not promised.

    passed: every engine is within the bounds, in float64 too; the bits are equal if that is
    promised or required; every ablation is beyond the bounds, if there is more than one group; and
    no group depends on another.
    """

    tokens: int
    groups: int
    bounds: Bounds
    wide_bounds: Bounds
    sizes: list[tuple[float, float]]
    engines: dict[str, Difference]
    wide: dict[str, Difference]
    ablations: dict[str, Difference]
    influence: Influence
    promised: bool
    required: bool
    machine: dict[str, object]

    @property
    def tolerance(self) -> float:
        """The largest difference of a hidden state that passes."""
        return max(self.bounds.layers)

    @property
    def bitwise(self) -> bool:
        """Whether dense and tree are equal to the separate runs bit for bit."""
        return self.engines["dense"].equal and self.engines["tree"].equal

    @property
    def bits_hold(self) -> bool:
        return self.bitwise or not (self.promised or self.required)

    @property
    def engines_agree(self) -> bool:
        return all(map(self.bounds.allow, self.engines.values()))

    @property
    def engines_agree_in_float64(self) -> bool:
        return all(map(self.wide_bounds.allow, self.wide.values()))

    @property
    def ablations_differ(self) -> bool:
        return self.groups == 1 or not any(map(self.bounds.allow, self.ablations.values()))

    @property
    def groups_independent(self) -> bool:
        """Whether no group depends on another. Scrambled runs are judged bit for bit if the engines
        are."""
        scrambled, exact = self.influence.scrambled, self.bitwise or self.promised or self.required
        unchanged = scrambled.equal if exact else self.bounds.allow(scrambled)
        return self.influence.gradients_hold and unchanged

    @property
    def passed(self) -> bool:
        agree = self.engines_agree and self.engines_agree_in_float64 and self.bits_hold
        return agree and self.ablations_differ and self.groups_independent


def verify(
    lm: LanguageModel,
    plan: Plan,
    tolerance: float | None = None,
    gradients: bool = False,
    require_bits: bool = False,
) -> Verification:
    """Compare the packed runs of a plan's prompts with separate runs of each, and check that no
    group depends on another; with `gradients` by derivatives too, which takes more memory and time.

    Bits must be equal where that is promised, and with `require_bits` anywhere. `tolerance` is
    absolute and holds for every number. By default a difference is judged as a part of its row's
    size: 1e-10 in float64; in a narrower dtype 6 times what rounding does to this model. That is
    measured layer by layer in float64, with at most 8 prompts in each engine, and takes a copy of
    the output matrix and of one layer at a time in float64. A layout in the plan is ignored.

    Raises InputError for prompts or a mask that do not fit, and for numbers that
    overflow.
    """
    prefix, branches = plan.prefix, plan.branches
    labels = [i for prompt in plan.prompts for i in prompt.label_ids]
    check_fit(lm.name, lm.config, prefix, branches, labels)
    check_mask_fits(len(prefix) + sum(map(len, branches)))
    comparison = compare(lm, plan)
    most = SAME if tolerance is None else tolerance
    layers = [most] * (lm.config.num_hidden_layers + 1)
    bounds = wide_bounds = Bounds(layers, most, most, most, relative=tolerance is None)
    if tolerance is None and comparison.rounding is not None:
        bounds = comparison.rounding.bounds(FACTOR)
    return Verification(
        tokens=sum(len(prefix) + len(branch) for branch in branches),
        groups=len(branches),
        bounds=bounds,
        wide_bounds=wide_bounds,
        sizes=comparison.sizes,
        engines={name: comparison.runs[name] for name in ENGINES},
        wide=comparison.wide,
        ablations={name: run for name, run in comparison.runs.items() if name not in ENGINES},
        influence=influence(lm, prefix, branches, gradients=gradients),
        promised=is_refined(lm.decoder),
        required=require_bits,
        machine=machine(lm.decoder.device),
    )


def machine(device: torch.device) -> dict[str, object]:
    """The device and the machine on which bits were compared."""
    name = f" ({torch.cuda.get_device_name(device)})" if device.type == "cuda" else ""
    return {"device": f"{device}{name}", **facts_and_threads()}
