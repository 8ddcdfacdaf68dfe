"""Packed against separate, token by token and layer by layer (the claim of Section 4).

Every token of every group prompt is run twice: in a packed sequence, and in a plain causal run of
that prompt alone. On a CPU the two are equal bit for bit. On a device whose kernels sum in another
order they may differ by rounding, and by no more than the rounding that this model shows by itself:
a few prompts are also run in a wider dtype, and each row is judged at its own size. The same
comparison with the mask or the positional re-encoding left out must fail, or it proves nothing.
influence.py adds a certificate: what a group must not see cannot change its rows.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from minise.engines import LanguageModel, branch_logits, layout_logits
from minise.ensemble import Plan
from minise.influence import Influence, flat_paths, influence
from minise.layout import Layout, causal_mask, pack
from minise.meter import check_fit, check_mask_fits
from minise.model import Decoder
from minise.traces import Apart, Trace, absolute, largest, pick, row_sizes, trace

WIDER = {
    torch.float32: torch.float64,
    torch.bfloat16: torch.float32,
    torch.float16: torch.float32,
}
MEASURED = 8  # prompts in the wider dtype
READ_ROWS = 16  # the last rows of each, whose logits are measured
# How many times the model's own rounding may separate two runs of one prompt. Measured in the half
# types, on the shipped checkpoints: a sound engine with one unit of noise after every attention and
# MLP came to 3.3 times, an engine with every group position off by one to 17 times or more.
FACTOR = 6


@dataclass(frozen=True)
class Difference:
    """How far a packed run is from the separate ones.

    layers: the largest absolute difference of a hidden state after each layer (the last entry is
    after the final norm); logits: of a logit (whole vocabulary); probabilities: of a label
    probability; changed: the share of groups whose most probable label changed. relative_layers,
    relative_logits: the largest difference of a row as part of its size (root mean square).
    equal: all of it is equal bit for bit.
    """

    layers: list[float]
    logits: float
    probabilities: float
    changed: float
    relative_layers: list[float]
    relative_logits: float
    equal: bool


@dataclass(frozen=True)
class Bounds:
    """The differences that pass: in each layer, in the logits, in the probabilities. `relative`:
    those of layers and logits are parts of each row's size; otherwise all are absolute."""

    layers: list[float]
    logits: float
    probabilities: float
    relative: bool = True

    def judged(self, found: Difference | Apart) -> list[float]:
        """What is held against `layers`, and then `logits`."""
        if isinstance(found, Apart):
            return found.relative if self.relative else found.absolute
        if self.relative:
            return [*found.relative_layers, found.relative_logits]
        return [*found.layers, found.logits]

    def allow(self, found: Difference | Apart) -> bool:
        """Whether nothing differs by more. A NaN is never within, nor is anything if the bound is
        one. Of hidden states alone (`Apart`) only these are judged."""
        pairs = zip(self.judged(found), [*self.layers, self.logits])  # noqa: B905
        within = all(value <= most < math.inf for value, most in pairs)
        return within and (isinstance(found, Apart) or found.probabilities <= self.probabilities)


@dataclass(frozen=True)
class Verification:
    """`tokens` counts the prompt tokens compared, the prefix once per group. `sizes`: the smallest
    and the largest row of each layer, then of the logits. `ablations` holds the packed run
    "without_mask" (plain causal) and "without_positions" (0, 1, 2, ...).

    passed: every engine is within the bounds; where there is more than one group, every ablation is
    beyond them; and no group hears of another."""

    tokens: int
    groups: int
    bounds: Bounds
    sizes: list[tuple[float, float]]
    engines: dict[str, Difference]
    ablations: dict[str, Difference]
    influence: Influence

    @property
    def tolerance(self) -> float:
        """The largest difference of a hidden state that passes."""
        return max(self.bounds.layers)

    @property
    def bitwise(self) -> bool:
        """Whether both engines are equal to the separate runs bit for bit."""
        return all(difference.equal for difference in self.engines.values())

    @property
    def engines_agree(self) -> bool:
        return all(map(self.bounds.allow, self.engines.values()))

    @property
    def ablations_differ(self) -> bool:
        return self.groups == 1 or not any(map(self.bounds.allow, self.ablations.values()))

    @property
    def groups_are_apart(self) -> bool:
        """The certificate. Scrambled runs are judged bit for bit where the engines are."""
        scrambled = self.influence.scrambled
        within = scrambled.equal if self.bitwise else self.bounds.allow(scrambled)
        return self.influence.gradients_hold and within

    @property
    def passed(self) -> bool:
        return self.engines_agree and self.ablations_differ and self.groups_are_apart


def verify(
    lm: LanguageModel, plan: Plan, tolerance: float | None = None, gradients: bool = False
) -> Verification:
    """Compare the packed runs of a plan's prompts with separate runs of each, and certify that no
    group hears of another; with `gradients` by derivatives too, which takes more memory and time.

    `tolerance` is absolute and holds for everything. By default differences are judged as parts of
    each row's size: at 1e-10 in float64, which only rounding can stay below; in a narrower dtype at
    6 times what rounding does to this model, measured layer by layer in a wider dtype. That takes
    a copy of the embedding, the output matrix and one layer at a time in the wider dtype.

    Of another library's model it tries the promises of bridges/promises.py, and returns a `Report`.
    """
    if hasattr(lm, "verify"):
        return lm.verify(plan, tolerance, gradients)
    prefix, branches = plan.prefix, plan.branches
    labels = [i for prompt in plan.prompts for i in prompt.label_ids]
    check_fit(lm.name, lm.config, prefix, branches, labels)
    check_mask_fits(len(prefix) + sum(map(len, branches)))
    with torch.inference_mode():
        packed = _packed_runs(lm, plan)
        sizes, bounds = _compare(lm, plan, packed)
    found = {name: run.difference() for name, run in packed.items()}
    layers = lm.config.num_hidden_layers + 1
    if tolerance is not None:
        bounds = Bounds([tolerance] * layers, tolerance, tolerance, relative=False)
    return Verification(
        tokens=sum(len(prefix) + len(branch) for branch in branches),
        groups=len(branches),
        bounds=bounds,
        sizes=sizes,
        engines={name: found[name] for name in ("dense", "tree")},
        ablations={name: found[name] for name in ("without_mask", "without_positions")},
        influence=influence(lm, prefix, branches, gradients=gradients),
    )


@dataclass
class _Packed:
    """A packed run, compared with one prompt after the other. `ends_only`: its top layer holds no
    row but the prompts' last ones."""

    hidden: Trace
    logits: Tensor
    paths: list[list[int]]
    ends_only: bool = False
    apart: Apart = field(default_factory=Apart)  # the logits come last
    probabilities: list[float] = field(default_factory=list)
    changed: int = 0

    def compare(self, group: int, alone: Trace, logits: Tensor, labels: list[int]) -> None:
        """Compare a prompt's rows, its logits (1, V) and its label probabilities."""
        rows = range(len(alone[0]))
        theirs = pick(alone, rows, rows[-1:] if self.ends_only else None)
        mine = pick(self.hidden, self.paths[group], [group] if self.ends_only else None)
        own = self.logits[group : group + 1]
        self.apart.add([*theirs, logits], [*mine, own])
        p, q = (row[0, labels].double().softmax(-1) for row in (logits, own))
        self.probabilities.append(absolute(p, q))
        self.changed += int(p.argmax() != q.argmax())

    def difference(self) -> Difference:
        *layers, logits = self.apart.absolute
        *relative_layers, relative_logits = self.apart.relative
        probabilities, changed = largest(self.probabilities), self.changed / len(self.probabilities)
        told = (layers, logits, probabilities, changed, relative_layers, relative_logits)
        return Difference(*told, equal=self.apart.equal)


def _packed_runs(lm: LanguageModel, plan: Plan) -> dict[str, _Packed]:
    """Both engines as they are used, and the ablations of the dense one."""
    prefix, branches = plan.prefix, plan.branches
    flat, tree = pack(prefix, branches), pack(prefix, branches, tree=True)
    T, paths = len(flat.tokens), flat_paths(prefix, branches)

    def engine(name: str) -> tuple[Trace, Tensor]:
        return trace(lm.decoder, lambda: branch_logits(lm, prefix, branches, name))

    def layout(ablation: Layout) -> tuple[Trace, Tensor]:
        return trace(lm.decoder, lambda: layout_logits(lm, ablation))

    return {
        "dense": _Packed(*engine("dense"), paths),
        "tree": _Packed(*engine("tree"), tree.paths(), ends_only=True),
        "without_mask": _Packed(*layout(flat.replace(mask=causal_mask(T))), paths),
        "without_positions": _Packed(*layout(flat.replace(positions=torch.arange(T))), paths),
    }


def _compare(
    lm: LanguageModel, plan: Plan, packed: dict[str, _Packed]
) -> tuple[list[tuple[float, float]], Bounds]:
    """Run each prompt alone and compare it; some in the wider dtype too. Return the smallest and
    largest row sizes, and the bounds."""
    wider = WIDER.get(lm.decoder.dtype)
    wide_lm = None if wider is None else replace(lm, decoder=_widened(lm.decoder, wider))
    step = -(-len(plan.branches) // MEASURED)
    own, label_rounding, sizes = Apart(), [0.0], []
    for group, prompt in enumerate(plan.prompts):
        alone, logits = _alone(lm, plan, group)
        for run in packed.values():
            run.compare(group, alone, logits, prompt.label_ids)
        sizes.append([row_sizes(rows) for rows in (*alone, logits)])
        if wide_lm is not None and group % step == 0:
            wide, _ = _alone(wide_lm, plan, group)
            read, wide_read = (
                x.decoder.logits(rows[-1][-READ_ROWS:]).to(wider)
                for x, rows in ((lm, alone), (wide_lm, wide))
            )
            own.add([*wide, wide_read], [*(rows.to(wider) for rows in alone), read])
            labels = prompt.label_ids
            label_rounding.append(absolute(wide_read[:, labels], read[:, labels]))
    ranges = [
        (float(layer.min()), float(layer.max()))
        for layer in (torch.cat(rows) for rows in zip(*sizes, strict=True))
    ]
    if wide_lm is None:
        return ranges, Bounds([1e-10] * (lm.config.num_hidden_layers + 1), 1e-10, 1e-10)
    *layers, read_bound = (FACTOR * rounding for rounding in own.relative)
    # Logits that move by at most d each move no probability by more than tanh(d / 2).
    return ranges, Bounds(layers, read_bound, math.tanh(FACTOR * largest(label_rounding) / 2))


def _alone(lm: LanguageModel, plan: Plan, group: int) -> tuple[Trace, Tensor]:
    """A plain causal run of one prompt, and the logits (1, V) after it."""
    branch = plan.branches[group]
    return trace(lm.decoder, lambda: branch_logits(lm, plan.prefix, [branch], "separate"))


class _Wide(nn.Module):
    """A layer that computes in another dtype, by a copy that lives for one call."""

    def __init__(self, layer: nn.Module, dtype: torch.dtype) -> None:
        super().__init__()
        self.layer, self.dtype = layer, dtype

    def forward(self, *given: object) -> Tensor:
        result: Tensor = copy.deepcopy(self.layer).to(self.dtype)(*given)
        return result


def _widened(decoder: Decoder, dtype: torch.dtype) -> Decoder:
    """The same model in a wider dtype. Its layers are widened one at a time, when they run."""
    with torch.device("meta"):
        wide = Decoder(decoder.config)
    wide.model.embed_tokens = copy.deepcopy(decoder.model.embed_tokens).to(dtype)
    wide.model.layers = nn.ModuleList(_Wide(layer, dtype) for layer in decoder.model.layers)
    wide.model.norm = copy.deepcopy(decoder.model.norm).to(dtype)
    if decoder.lm_head is not None:
        wide.lm_head = copy.deepcopy(decoder.lm_head).to(dtype)
    return wide
