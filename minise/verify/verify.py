"""Compare packed runs with separate runs, token by token and layer by layer (Section 4's claim).

Every token of every group prompt is run packed, and in a plain causal run of that prompt alone.

Numbers: in float64 every engine must be within 1e-10 of a row's size, so that rounding hides no
fault. A model of another dtype is run again in float64 for this, with some of the prompts; in its
own dtype a difference must be one that its rounding explains. The engine plain computes by the
definition, the others in the calls of minise/exact/: what they have wrong shows up beside plain.

Bits: on a CPU, where the numbers of rows that share their bits are found (docs/verify.md), dense,
tree and separate must be equal bit for bit: hidden states, logits and label logits.

Influence: what a group must not see cannot change its rows (influence.py).

Ablations: the same without the mask, or without the positional re-encoding, must differ. If it does
not, the question cannot show a fault, and the check proves nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch

from minise.checks import check_mask_fits, check_prompts
from minise.engines import LanguageModel
from minise.exact.machine import facts
from minise.method import Plan
from minise.verify.comparison import ABLATIONS, ENGINES, Difference, compare, rounding, some
from minise.verify.influence import Influence, influence
from minise.verify.traces import Apart, largest
from minise.verify.widened import widened

SAME = 1e-10  # of a row's size: in float64, rounding stays below this and faults do not
# How many times the model's own rounding may separate two runs of one prompt. Measured in the half
# types, on the shipped checkpoints: a sound engine with one unit of noise after every attention and
# MLP came to 3.3 times, an engine with every group position off by one to 17 times or more.
FACTOR = 6


@dataclass(frozen=True)
class Verification:
    """The result of `verify`.

    tokens: how many prompt tokens were compared, the prefix once per group. runs: each engine and
    ablation in the model's dtype. wide: the same in float64, with some of the prompts. rounding:
    how far separate runs are from float64; None if they are in it. promised: this machine's kernels
    give equal bits. required: the bits must be equal even if not. machine: what decides rounding.
    """

    tokens: int
    groups: int
    runs: dict[str, Difference]
    wide: dict[str, Difference]
    rounding: Apart | None
    influence: Influence
    promised: bool
    required: bool
    machine: dict[str, object]

    @property
    def bitwise(self) -> bool:
        return self.runs["dense"].equal and self.runs["tree"].equal

    @property
    def passed(self) -> bool:
        return self.failure is None

    def same(self, name: str) -> bool:
        """Whether a run computes what the separate runs do: in float64 up to 1e-10, and in its own
        dtype up to what rounding explains. A NaN is never within a bound."""
        return largest(self.wide[name].relative) <= SAME and self._explained(self.runs[name])

    def _explained(self, apart: Apart) -> bool:
        allowed = [SAME] * len(apart.relative)
        if self.rounding is not None:
            allowed = [FACTOR * one for one in self.rounding.relative]
        # Scrambled runs have no logits.
        pairs = zip(apart.relative, allowed, strict=False)
        return all(value <= most < math.inf for value, most in pairs)

    @property
    def failure(self) -> str | None:
        """The first check that failed, in words; None if all passed."""
        wrong = [name for name in ENGINES if not self.same(name)]
        if wrong:
            return f"{' and '.join(wrong)}: not the numbers of the separate runs"
        exact = self.bitwise or self.promised or self.required
        if exact and not self.bitwise:
            why = f"bits differ, and they are {'promised' if self.promised else 'required'}"
            return f"{why} on {self.place}"
        if self.groups > 1 and any(largest(self.wide[name].relative) <= SAME for name in ABLATIONS):
            return "this question shows nothing, because an ablation has the same numbers"
        unchanged = self.influence.equal if exact else self._explained(self.influence)
        if not unchanged:
            return "a group depends on what it must not see"
        return None

    @property
    def place(self) -> object:
        """The processor or other device."""
        return self.machine["cpu" if self.machine["device"] == "cpu" else "device"]


def verify(lm: LanguageModel, plan: Plan, require_bits: bool = False) -> Verification:
    """Compare the packed runs of a plan's prompts with separate runs of each, and check that no
    group depends on another. Bits must be equal on a CPU, and with `require_bits` anywhere. In
    another dtype than float64 at most 8 prompts run in float64 too. A layout in the plan is not
    used. Raises InputError for prompts, a mask or scores that do not fit, and for overflow.
    """
    plan, device = replace(plan, layout=None), lm.decoder.device
    prefix, branches = plan.prefix, plan.branches
    check_prompts(lm, prefix, branches, [i for one in plan.prompts for i in one.label_ids or ()])
    check_mask_fits(plan.tokens("dense"))
    runs = wide = compare(lm, plan)
    own_rounding = None
    if lm.decoder.dtype != torch.float64:
        wide_lm, part = widened(lm), some(plan)
        wide, own_rounding = compare(wide_lm, part), rounding(lm, wide_lm, part)
    name = f" ({torch.cuda.get_device_name(device)})" if device.type == "cuda" else ""
    return Verification(
        tokens=sum(len(prefix) + len(branch) for branch in branches),
        groups=len(branches),
        runs=runs,
        wide=wide,
        rounding=own_rounding,
        influence=influence(lm, prefix, branches),
        promised=device.type == "cpu",
        required=require_bits,
        machine={"device": f"{device}{name}", **facts(), "threads": torch.get_num_threads()},
    )
