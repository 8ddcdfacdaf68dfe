"""Compare packed runs with separate runs, token by token and layer by layer (Section 4's claim).

Numbers: in float64 every engine must be within 1e-10 of a row's size, so that rounding hides no
fault. A model of another dtype is run again in float64, with some of the prompts; in its own dtype
a difference must be one that its rounding explains. Bits: on a CPU dense, tree and separate must be
equal bit for bit. Influence: what a group must not see cannot change its rows. Ablations: without
the mask, or the positional re-encoding, the numbers must differ, or the question shows no fault.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch

from minise.checks import check_mask_fits, check_prompts
from minise.engines import LanguageModel
from minise.equal_bits.machine import environment, facts, instructions, processor
from minise.method import Plan
from minise.verify.comparison import ABLATIONS, ENGINES, Difference, compare, in_float64, influence

SAME = 1e-10  # of a row's size: in float64, rounding stays below this and faults do not
# How many times its rounding may separate two runs of a prompt. Measured in the half types: a unit
# of noise after every attention and MLP came to 3.3 times, positions off by one to 17 or more.
FACTOR = 6
YES = {True: "yes", False: "no"}


@dataclass(frozen=True)
class Verification:
    """The result of `verify`.

    tokens: how many prompt tokens were compared, the prefix once per group. runs: each engine and
    ablation in the model's dtype. wide: the same in float64, with some of the prompts, and, unless
    the model is in it, "rounding": how far its separate runs are from it. promised: this machine's
    kernels give equal bits. required: they must be equal even if not. machine: what decides bits.
    """

    tokens: int
    groups: int
    runs: dict[str, Difference]
    wide: dict[str, Difference]
    influence: Difference
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
        return self.wide[name].most <= SAME and self._explained(self.runs[name])

    def _explained(self, run: Difference) -> bool:
        own = self.wide.get("rounding")
        allowed = FACTOR * own.relative if own else torch.tensor(SAME)
        return bool(((run.relative <= allowed) & (allowed < math.inf)).all())

    @property
    def failure(self) -> str | None:
        """The first check that failed, in words; None if all passed."""
        wrong = [name for name in ENGINES if not self.same(name)]
        if wrong:
            return f"{' and '.join(wrong)}: not the numbers of the separate runs"
        if not self.bitwise and (self.promised or self.required):
            return f"bits differ, and they are {'promised' if self.promised else 'required'} here"
        if self.groups > 1 and any(self.wide[name].most <= SAME for name in ABLATIONS):
            return "this question shows nothing, because an ablation has the same numbers"
        unchanged = self.influence.equal if self.bitwise else self._explained(self.influence)
        return None if unchanged else "a group depends on what it must not see"


def verify(lm: LanguageModel, plan: Plan, require_bits: bool = False) -> Verification:
    """Compare the packed runs of a plan's prompts with separate runs of each, and check that no
    group depends on another. Bits must be equal on a CPU, and with `require_bits` anywhere. In
    another dtype than float64 at most 8 prompts run in float64 too. A layout in the plan is not
    used. Raises InputError for prompts, a mask or scores that do not fit, and for overflow.
    """
    plan, device = replace(plan, layout=None), lm.decoder.device
    check_prompts(lm, plan.prefix, plan.branches)
    check_mask_fits(plan.tokens("dense"))
    runs = compare(lm, plan)
    name = f" ({torch.cuda.get_device_name(device)})" if device.type == "cuda" else ""
    return Verification(
        tokens=plan.tokens("separate"),
        groups=len(plan.prompts),
        runs=runs,
        wide=runs if lm.decoder.dtype == torch.float64 else in_float64(lm, plan),
        influence=influence(lm, plan),
        promised=device.type == "cpu",
        required=require_bits,
        machine={"device": f"{device}{name}", **facts(), "threads": torch.get_num_threads()},
    )


def as_json(result: Verification) -> dict[str, Any]:
    """The fields of `minise verify --json` after the model's name and dtype. Differences are
    absolute; `tolerance`, and the largest differences in `float64`, are parts of a row's size."""

    def numbers(name: str) -> dict[str, Any]:
        run = result.runs[name]
        *layers, labels, logits, probabilities = run.absolute.tolist()
        more = {"probabilities": probabilities, "changed": run.changed / run.pairs}
        return {"layers": layers, "logits": logits, "labels": labels, **more}

    found, names = result.influence, ("tokens", "groups", "passed", "promised", "machine")
    return {
        **{name: getattr(result, name) for name in names},
        "tolerance": SAME,
        "engines": {name: numbers(name) for name in ENGINES},
        "ablations": {name: numbers(name) for name in ABLATIONS},
        "float64": {name: result.wide[name].most for name in result.runs},
        "same": {name: result.same(name) for name in result.runs},
        "bitwise": {name: result.runs[name].equal for name in ("dense", "tree")},
        "influence": {"runs": found.pairs, "scrambled_equal": found.equal},
    }


def as_text(model: str, dtype: str, result: Verification) -> str:
    """What was compared, a line for each run and its verdict, the influence, and the end."""
    table = [["", "layers", "logits", "labels", "changed", "equal bits", "float64", "verdict"]]
    for name, run in {**result.wide, **result.runs}.items():
        parts = run.relative[:-2].max(), run.relative[-1], run.relative[-2], result.wide[name].most
        *numbers, decides = (f"{float(part):.1e}" for part in parts)
        is_run = name in result.runs
        verdict = ("the same" if result.same(name) else "different") if is_run else "allowed"
        same = f"{run.changed / run.pairs:.0%}", YES[run.equal], decides, verdict
        table.append([name.replace("_", " "), *numbers, *same])
    others, few = result.influence, result.wide["dense"].pairs
    size = f"{result.tokens:,} tokens of {result.groups} group prompts"
    bits = "separate, dense and tree are equal bit for bit" if result.bitwise else "not equal bits"
    more = "" if result.promised else ", which are not promised here"
    passed = f"passed: {bits}{more}; no group sees another"
    lines = [
        f"{model}, {dtype}: {size}, packed against separate",
        f"on {result.machine['device']}: {in_words()}\n",
        "The largest difference of a row from the separate runs, as a part of the row's size. In",
        f"float64 ({few} prompts) {SAME:.0e} passes; in another dtype {FACTOR} times rounding.\n",
        *(f"  {name:18}" + "".join(f"{cell:>11}" for cell in cells) for name, *cells in table),
        f"\nInfluence: in {others.pairs} runs random tokens replace all that a group must not see.",
        f"  Its hidden states stay equal bit for bit: {YES[others.equal]}\n",
        passed if result.passed else f"FAILED: {result.failure}",
    ]
    return "\n".join(lines)


def in_words() -> str:
    """The facts about this machine on one line, with the number of threads."""
    versions = [f"torch {torch.__version__}", f"threads {torch.get_num_threads()}"]
    variables = [f"{name}={value}" for name, value in environment().items()]
    return ", ".join([processor(), instructions(), *versions, *variables])
