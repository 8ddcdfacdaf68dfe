"""Compare packed runs with separate runs of the same prompts: every row, every layer, the logits,
and the label logits as answers read them.

The same runs in float64 show what rounding hides in a narrower dtype: two correct ways to the same
number agree to 1e-10 of a row's size, and a fault changes more than that. Some of the prompts are
enough for it. The separate runs in float64 also measure how much this model rounds.
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
MEASURED = 8  # prompts, at most, that run in float64 too
READ_ROWS = 16  # the last rows of each, whose logits are measured
SAME = 1e-10  # of a row's size: in float64, rounding stays below this and faults do not


@dataclass(frozen=True)
class Difference:
    """How far a packed run is from the separate ones.

    layers: the largest absolute difference of a hidden state after each layer (the last entry is
    after the final norm); logits: of a logit (whole vocabulary); labels: of a label logit, read as
    answers read it, from the separate run's logit of that label's id; probabilities: of a label
    probability; changed: the share of groups whose most probable label changed. relative_layers,
    relative_logits: the largest difference of a row as part of its size (root mean square);
    relative_labels: of a label logit as part of the size of its row of logits. equal: whether
    hidden states, logits and label logits are equal bit for bit. prompts: how many were compared.
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
    """The largest differences that pass: in each layer, in the logits, in the label logits, in the
    probabilities. `relative`: whether all but the last are parts of a row's size, not absolute."""

    layers: list[float]
    logits: float
    labels: float
    probabilities: float
    relative: bool = True

    @property
    def listed(self) -> list[float]:
        """The bounds in the order of the differences of `judged`."""
        return [*self.layers, self.logits, self.labels]

    def judged(self, difference: Difference | Apart) -> list[float]:
        """The differences that `listed` bounds. An `Apart` has those of hidden states only."""
        if isinstance(difference, Apart):
            return difference.relative if self.relative else difference.absolute
        if self.relative:
            relative_ends = [difference.relative_logits, difference.relative_labels]
            return [*difference.relative_layers, *relative_ends]
        return [*difference.layers, difference.logits, difference.labels]

    def allow(self, difference: Difference | Apart) -> bool:
        """Whether every difference is within its bound. A NaN never is, and a bound that is NaN or
        infinite allows nothing."""
        pairs = zip(self.judged(difference), self.listed)  # noqa: B905
        if not all(value <= most < math.inf for value, most in pairs):
            return False
        return isinstance(difference, Apart) or difference.probabilities <= self.probabilities


@dataclass(frozen=True)
class Comparison:
    """sizes: of the smallest and the largest row of each layer, then of the logits. runs: each
    engine and each ablation. wide: each engine in float64; empty if the model computes in float64
    anyway. rounding: this model's own, measured in float64; None if `wide` is empty."""

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
    measured, wide_lm, wide = _spread(range(G)), lm, {}
    if lm.decoder.dtype != torch.float64:
        wide_lm = replace(lm, decoder=widened(lm.decoder, torch.float64))
        wide = _engine_runs(wide_lm, plan, measured)
    sizes, rounding = [], Rounding()
    for group in range(G):
        alone = _alone(lm, plan, group)
        for run in runs.values():
            run.compare(group, alone)
        sizes.append([row_sizes(rows) for rows in (*alone.hidden, alone.logits)])
        if wide and group in measured:
            wide_alone = _alone(wide_lm, plan, group)
            for run in wide.values():
                run.compare(group, wide_alone)
            rounding.add(lm, alone, wide_lm, wide_alone)
    layers = (torch.cat(rows) for rows in zip(*sizes, strict=True))
    return Comparison(
        [(float(layer.min()), float(layer.max())) for layer in layers],
        {name: run.difference() for name, run in runs.items()},
        {name: run.difference() for name, run in wide.items()},
        rounding if wide else None,
    )


@dataclass(frozen=True, eq=False)
class _Alone:
    """A causal run of one prompt. hidden: its hidden states; logits: (1, V), after its last token;
    labels: its label logits (m,), float64; ids: the labels' token ids."""

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
    """A packed run of some groups, to compare with one prompt after another. `ends_only`: its top
    layer has only the prompts' last rows."""

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
        separate = pick(alone.hidden, rows, rows[-1:] if self.ends_only else None)
        packed = pick(self.hidden, self.paths[place], [place] if self.ends_only else None)
        self.apart.add([*separate, alone.logits], [*packed, self.logits[place : place + 1]])
        labels = self.labels[place]
        self.equal_labels &= torch.equal(labels, alone.labels)
        p, q = alone.labels.softmax(-1), labels.softmax(-1)
        self.probabilities.append(absolute(p, q))
        self.changed += int(p.argmax() != q.argmax())
        # From the whole row of logits: columns in the same wrong order in every run would agree.
        expected, size = alone.logits[0, alone.ids].cpu(), float(row_sizes(alone.logits))
        gap = absolute(expected, labels)
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
    """Run these groups by each engine, as answers do. The engine plain holds the scores of all
    tokens at once; if they do not fit in memory, it runs some of the groups."""
    runs = {name: _run(lm, plan, groups, name) for name in ("dense", "tree")}
    try:
        runs["plain"] = _run(lm, plan, groups, "plain")
    except InputError:
        runs["plain"] = _run(lm, plan, _spread(groups), "plain")
    return runs


def _spread(groups: Sequence[int]) -> Sequence[int]:
    """At most MEASURED of the groups, spread over all."""
    return groups[:: -(-len(groups) // MEASURED)]


def _run(
    lm: LanguageModel, plan: Plan, groups: Sequence[int], engine: str, layout: Layout | None = None
) -> _Packed:
    """A packed run of these groups by an engine. With a layout, which must be of all groups: by
    dense in that layout."""
    part = replace(plan, prompts=[plan.prompts[group] for group in groups], layout=layout)
    prompts, tree = (part.prefix, part.branches), engine == "tree"
    hidden, labels = trace(lm.decoder, lambda: label_logits(lm, part, engine))
    # The tree's top layer has the ends only.
    ends = hidden[-1] if tree else hidden[-1][(layout or pack(*prompts)).ends]
    logits = lm.decoder.logits(ends) if engine == "plain" else lm.logits(ends)
    paths = pack(*prompts, tree=True).paths() if tree else flat_paths(*prompts)
    return _Packed(groups, hidden, logits, labels, paths, ends_only=tree)


class Rounding:
    """The largest differences between a model and itself in float64, over the prompts added."""

    def __init__(self) -> None:
        self.apart, self.labels, self.relative_labels = Apart(), [0.0], [0.0]

    def add(self, lm: LanguageModel, narrow: _Alone, wide_lm: LanguageModel, wide: _Alone) -> None:
        """Compare one prompt's run in the model's dtype with its run in float64."""
        logits = lm.logits(narrow.hidden[-1][-READ_ROWS:]).double()
        wide_logits = wide_lm.logits(wide.hidden[-1][-READ_ROWS:]).double()
        hidden = [rows.double() for rows in narrow.hidden]
        self.apart.add([*wide.hidden, wide_logits], [*hidden, logits])
        gaps = (wide_logits[:, wide.ids] - logits[:, wide.ids]).abs().amax(dim=1)
        self.labels.append(float(gaps.max()))
        self.relative_labels.append(float((gaps / row_sizes(wide_logits)).max()))

    def bounds(self, factor: float) -> Bounds:
        """`factor` times the rounding."""
        *layers, logits = (factor * x for x in self.apart.relative)
        labels, relative = (factor * largest(x) for x in (self.labels, self.relative_labels))
        # Logits that move by at most d each move no probability by more than tanh(d / 2).
        return Bounds(layers, logits, relative, math.tanh(labels / 2))
