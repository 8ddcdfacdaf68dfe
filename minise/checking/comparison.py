"""Packed runs against separate runs of the same prompts: every row, every layer, the logits, and
the label logits by the path that answers use.

The same runs in float64 show what rounding hides in a narrower dtype: two sound ways to the same
number agree to 1e-10 of a row's size, and what a fault changes is larger. Some of the prompts are
enough for that. The separate runs in float64 also tell how much this model rounds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from minise.checking.influence import flat_paths
from minise.checking.traces import Apart, Trace, absolute, largest, pick, row_sizes, trace
from minise.checking.widened import widened
from minise.engines import LanguageModel
from minise.errors import InputError
from minise.layout import Layout, causal_mask, pack
from minise.method import Plan, label_logits

ENGINES = ("dense", "tree", "plain")
MEASURED = 8  # prompts that run in float64 too
READ_ROWS = 16  # the last rows of each, whose logits are measured
SAME = 1e-10  # of a row's size: the difference in float64 that only rounding can stay below


@dataclass(frozen=True)
class Difference:
    """How far a packed run is from the separate ones.

    layers: the largest absolute difference of a hidden state after each layer (the last entry is
    after the final norm); logits: of a logit (whole vocabulary); labels: of a label logit, read as
    answers read it, from the separate run's logit of that label's id; probabilities: of a label
    probability; changed: the share of groups whose most probable label changed. relative_layers,
    relative_logits: the largest difference of a row as part of its size (root mean square);
    relative_labels: of a label logit as part of the size of its row of logits.
    equal: hidden states, logits and label logits are equal bit for bit. prompts: how many were
    compared.
    """

    layers: list[float]
    logits: float
    labels: float
    probabilities: float
    changed: float
    relative_layers: list[float]
    relative_logits: float
    relative_labels: float
    equal: bool
    prompts: int


@dataclass(frozen=True)
class Bounds:
    """The differences that pass: in each layer, in the logits, in the label logits, in the
    probabilities. `relative`: all but the last are parts of a row's size; otherwise absolute."""

    layers: list[float]
    logits: float
    labels: float
    probabilities: float
    relative: bool = True

    @property
    def listed(self) -> list[float]:
        """Those that `judged` is held against."""
        return [*self.layers, self.logits, self.labels]

    def judged(self, found: Difference | Apart) -> list[float]:
        """What is held against `listed`. Of hidden states alone (`Apart`) these only."""
        if isinstance(found, Apart):
            return found.relative if self.relative else found.absolute
        if self.relative:
            return [*found.relative_layers, found.relative_logits, found.relative_labels]
        return [*found.layers, found.logits, found.labels]

    def allow(self, found: Difference | Apart) -> bool:
        """Whether nothing differs by more. A NaN is never within, nor is anything if the bound is
        one."""
        pairs = zip(self.judged(found), self.listed)  # noqa: B905
        within = all(value <= most < math.inf for value, most in pairs)
        return within and (isinstance(found, Apart) or found.probabilities <= self.probabilities)


@dataclass(frozen=True)
class Comparison:
    """sizes: the smallest and the largest row of each layer, then of the logits. runs: each engine
    and each ablation. wide: each engine in float64; empty where the model computes in it anyway.
    rounding: this model's own, measured in float64; None where `wide` is empty."""

    sizes: list[tuple[float, float]]
    runs: dict[str, Difference]
    wide: dict[str, Difference]
    rounding: Rounding | None


@torch.inference_mode()
def compare(lm: LanguageModel, plan: Plan) -> Comparison:
    """Run each prompt of the plan alone, and compare every packed run with it."""
    flat = pack(plan.prefix, plan.branches)
    T, G = len(flat.tokens), len(plan.branches)
    runs = _engine_runs(lm, plan, range(G))
    ablations = {
        "without_mask": flat.replace(mask=causal_mask(T)),
        "without_positions": flat.replace(positions=torch.arange(T)),
    }
    for name, layout in ablations.items():
        runs[name] = _run(lm, plan, range(G), "dense", layout)
    some, wide_lm, wide = _some(range(G)), lm, {}
    if lm.decoder.dtype != torch.float64:
        wide_lm = replace(lm, decoder=widened(lm.decoder, torch.float64))
        wide = _engine_runs(wide_lm, plan, some)
    sizes, rounding = [], Rounding()
    for group in range(G):
        alone = _alone(lm, plan, group)
        for run in runs.values():
            run.compare(group, alone)
        sizes.append([row_sizes(rows) for rows in (*alone.hidden, alone.logits)])
        if wide and group in some:
            exactly = _alone(wide_lm, plan, group)
            for run in wide.values():
                run.compare(group, exactly)
            rounding.add(lm, alone, wide_lm, exactly)
    layers = (torch.cat(rows) for rows in zip(*sizes, strict=True))
    return Comparison(
        [(float(layer.min()), float(layer.max())) for layer in layers],
        {name: run.difference() for name, run in runs.items()},
        {name: run.difference() for name, run in wide.items()},
        rounding if wide else None,
    )


@dataclass(frozen=True, eq=False)
class _Alone:
    """A causal run of one prompt: its hidden states, the logits (1, V) after it, and its label
    logits (m,), float64, whose token ids are `ids`."""

    hidden: Trace
    logits: Tensor
    labels: Tensor
    ids: list[int]


def _alone(lm: LanguageModel, plan: Plan, group: int) -> _Alone:
    prompt = plan.prompts[group]
    one = replace(plan, prompts=[prompt], layout=None)
    hidden, (labels,) = trace(lm.decoder, lambda: label_logits(lm, one, "separate"))
    logits = lm.logits(hidden[-1][-1:])
    return _Alone(hidden, logits, labels, prompt.label_ids)


@dataclass
class _Packed:
    """A packed run of some groups, compared with one prompt after the other. `ends_only`: its top
    layer holds no row but the prompts' last ones."""

    groups: Sequence[int]
    hidden: Trace
    logits: Tensor
    labels: list[Tensor]  # of each group, as answers read them
    paths: list[list[int]]
    ends_only: bool
    apart: Apart = field(default_factory=Apart)  # the logits come last
    equal_labels: bool = True
    label_gaps: list[tuple[float, float]] = field(default_factory=list)  # absolute, relative
    probabilities: list[float] = field(default_factory=list)
    changed: int = 0

    def compare(self, group: int, alone: _Alone) -> None:
        """Compare a prompt's rows, its logits, label logits and label probabilities."""
        if group not in self.groups:
            return
        place = self.groups.index(group)
        rows = range(len(alone.hidden[0]))
        theirs = pick(alone.hidden, rows, rows[-1:] if self.ends_only else None)
        mine = pick(self.hidden, self.paths[place], [place] if self.ends_only else None)
        self.apart.add([*theirs, alone.logits], [*mine, self.logits[place : place + 1]])
        labels = self.labels[place]
        self.equal_labels &= torch.equal(labels, alone.labels)
        p, q = alone.labels.softmax(-1), labels.softmax(-1)
        self.probabilities.append(absolute(p, q))
        self.changed += int(p.argmax() != q.argmax())
        # An order of columns that is wrong in every run would agree with itself.
        whole, size = alone.logits[0, alone.ids].cpu(), float(row_sizes(alone.logits))
        gap = absolute(whole, labels)
        self.label_gaps.append((gap, gap / size))

    def difference(self) -> Difference:
        *layers, logits = self.apart.absolute
        *relative_layers, relative_logits = self.apart.relative
        gaps, relative_gaps = zip(*self.label_gaps, strict=True)
        return Difference(
            layers,
            logits,
            largest(gaps),
            largest(self.probabilities),
            self.changed / len(self.probabilities),
            relative_layers,
            relative_logits,
            largest(relative_gaps),
            self.apart.equal and self.equal_labels,
            len(self.groups),
        )


def _engine_runs(lm: LanguageModel, plan: Plan, groups: Sequence[int]) -> dict[str, _Packed]:
    """These groups by each engine, as it is used. If the scores of all are too many for the plain
    one, which holds them at once, it runs some."""
    runs = {name: _run(lm, plan, groups, name) for name in ("dense", "tree")}
    try:
        runs["plain"] = _run(lm, plan, groups, "plain")
    except InputError:
        runs["plain"] = _run(lm, plan, _some(groups), "plain")
    return runs


def _some(groups: Sequence[int]) -> Sequence[int]:
    """At most MEASURED of them, spread over all."""
    return groups[:: -(-len(groups) // MEASURED)]


def _run(
    lm: LanguageModel, plan: Plan, groups: Sequence[int], engine: str, layout: Layout | None = None
) -> _Packed:
    """A packed run of these groups by an engine, or by dense in a layout of all."""
    asked = replace(plan, prompts=[plan.prompts[group] for group in groups], layout=layout)
    prompts, tree = (asked.prefix, asked.branches), engine == "tree"
    hidden, labels = trace(lm.decoder, lambda: label_logits(lm, asked, engine))
    # The tree's top layer has nothing but the ends.
    ends = hidden[-1] if tree else hidden[-1][(layout or pack(*prompts)).ends]
    logits = lm.decoder.logits(ends) if engine == "plain" else lm.logits(ends)
    paths = pack(*prompts, tree=True).paths() if tree else flat_paths(*prompts)
    return _Packed(groups, hidden, logits, labels, paths, ends_only=tree)


class Rounding:
    """How far a model is from itself in float64, over the prompts added."""

    def __init__(self) -> None:
        self.apart, self.labels, self.relative_labels = Apart(), [0.0], [0.0]

    def add(self, lm: LanguageModel, own: _Alone, wide_lm: LanguageModel, wide: _Alone) -> None:
        read, exactly = (
            x.logits(run.hidden[-1][-READ_ROWS:]).double()
            for x, run in ((lm, own), (wide_lm, wide))
        )
        self.apart.add([*wide.hidden, exactly], [*(rows.double() for rows in own.hidden), read])
        gaps = (exactly[:, wide.ids] - read[:, wide.ids]).abs().amax(dim=1)
        self.labels.append(float(gaps.max()))
        self.relative_labels.append(float((gaps / row_sizes(exactly)).max()))

    def bounds(self, factor: float) -> Bounds:
        """So many times the rounding."""
        *layers, logits = (factor * x for x in self.apart.relative)
        labels, relative = (factor * largest(x) for x in (self.labels, self.relative_labels))
        # Logits that move by at most d each move no probability by more than tanh(d / 2).
        return Bounds(layers, logits, relative, math.tanh(labels / 2))
