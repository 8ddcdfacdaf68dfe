"""Packed against separate, token by token and layer by layer (the claim of Section 4).

Every token of every group prompt is run twice: in a packed sequence, and in a plain causal run of
that prompt alone. Three things are asked.

Bits: where the numbers of rows that share their bits were found for this machine (docs/bits.md),
dense, tree and separate must be equal bit for bit, hidden states, logits and label logits.

Numbers: every engine is within the rounding that this model shows by itself, and in float64 within
1e-10, so that no fault hides behind rounding. The engine plain computes by the definition, the
others in the calls of minise/exact/: a fault that all of these share shows beside it.

Influence: what a group must not see cannot change its rows (influence.py). And the same comparison
with the mask or the positional re-encoding left out must fail, or it proves nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from minise.checking.comparison import ENGINES, SAME, Bounds, Difference, compare
from minise.checking.influence import Influence, influence
from minise.engines import LanguageModel, check_fit, check_mask_fits
from minise.errors import InputError
from minise.exact.layers import is_refined
from minise.exact.machine import facts
from minise.method import Plan

# How many times the model's own rounding may separate two runs of one prompt. Measured in the half
# types, on the shipped checkpoints: a sound engine with one unit of noise after every attention and
# MLP came to 3.3 times, an engine with every group position off by one to 17 times or more.
FACTOR = 6


@dataclass(frozen=True)
class Verification:
    """`tokens` counts the prompt tokens compared, the prefix once per group. `sizes`: the smallest
    and the largest row of each layer, then of the logits. `engines`: "dense", "tree" and "plain".
    `wide`: the same in float64, for some of the prompts; empty where the model computes in it.
    `ablations` holds the packed run "without_mask" (plain causal) and "without_positions" (0, 1,
    2, ...). `machine`: the device, the processor, and what else decides how it rounds.

    promised: this machine's kernels give dense, tree and separate equal bits. required: their bits
    must be equal whatever is promised.

    passed: every engine is within the bounds, in float64 too; the bits are equal where that is
    promised or required; where there is more than one group, every ablation is beyond the bounds;
    and no group hears of another."""

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
    def groups_are_apart(self) -> bool:
        """The certificate. Scrambled runs are judged bit for bit where the engines are."""
        scrambled, exact = self.influence.scrambled, self.bitwise or self.promised or self.required
        within = scrambled.equal if exact else self.bounds.allow(scrambled)
        return self.influence.gradients_hold and within

    @property
    def passed(self) -> bool:
        agree = self.engines_agree and self.engines_agree_in_float64 and self.bits_hold
        return agree and self.ablations_differ and self.groups_are_apart


def verify(
    lm: LanguageModel,
    plan: Plan,
    tolerance: float | None = None,
    gradients: bool = False,
    require_bits: bool = False,
) -> Verification:
    """Compare the packed runs of a plan's prompts with separate runs of each, and certify that no
    group hears of another; with `gradients` by derivatives too, which takes more memory and time.

    Where equal bits are promised they must be there, with `require_bits` anywhere. `tolerance` is
    absolute and holds for every number. By default differences are judged as parts of each row's
    size: at 1e-10 in float64; in a narrower dtype at 6 times what rounding does to this model,
    measured layer by layer in float64, in which at most 8 prompts run in each engine too. That
    takes a copy of the output matrix and of one layer at a time in float64. A plan's own layout
    plays no part.

    Raises InputError for prompts or a mask that do not fit, and for numbers that overflow. Of
    another library's model it tries the promises of bridges/promises.py, and returns a `Report`.
    """
    if hasattr(lm, "verify"):
        if require_bits:
            raise InputError(f"{lm.name}: nothing promises the bits of another library")
        return lm.verify(plan, tolerance, gradients)
    prefix, branches = plan.prefix, plan.branches
    labels = [i for prompt in plan.prompts for i in prompt.label_ids]
    check_fit(lm.name, lm.config, prefix, branches, labels)
    check_mask_fits(len(prefix) + sum(map(len, branches)))
    found = compare(lm, plan)
    most = SAME if tolerance is None else tolerance
    layers = [most] * (lm.config.num_hidden_layers + 1)
    bounds = wide_bounds = Bounds(layers, most, most, most, relative=tolerance is None)
    if tolerance is None and found.rounding is not None:
        bounds = found.rounding.bounds(FACTOR)
    return Verification(
        tokens=sum(len(prefix) + len(branch) for branch in branches),
        groups=len(branches),
        bounds=bounds,
        wide_bounds=wide_bounds,
        sizes=found.sizes,
        engines={name: found.runs[name] for name in ENGINES},
        wide=found.wide,
        ablations={name: run for name, run in found.runs.items() if name not in ENGINES},
        influence=influence(lm, prefix, branches, gradients=gradients),
        promised=is_refined(lm.decoder),
        required=require_bits,
        machine=machine(lm.decoder.device),
    )


def machine(device: torch.device) -> dict[str, object]:
    """What a verdict of bits was found on."""
    name = f" ({torch.cuda.get_device_name(device)})" if device.type == "cuda" else ""
    return {"device": f"{device}{name}", **facts(), "threads": torch.get_num_threads()}
