"""Compare packed runs with separate runs of the same prompts: every row, every layer, the logits,
and the label logits as answers read them. And check that no group depends on another.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from minise.engines import LanguageModel, layout_ends, run_alone
from minise.exact import run as exact
from minise.layout import Layout, Tree, causal_mask, pack
from minise.method import Plan, label_logits
from minise.model import Decoder

ENGINES, ABLATIONS = ("dense", "tree", "plain"), ("without_mask", "without_positions")
FEW = 8  # prompts, at most and spread over all, where all would take too long or too much memory
T = TypeVar("T")
Trace = list[Tensor]  # the rows' hidden states (R, D) after each layer, then after the final norm


def trace(decoder: Decoder, run: Callable[[], T]) -> tuple[Trace, T]:
    """The hidden states of the one pass of `decoder` in `run`, and what `run` returned."""
    rows: Trace = []
    hooks = [
        module.register_forward_hook(lambda _, inputs, output: rows.append(output.flatten(0, -2)))
        for module in (*decoder.model.layers, decoder.model.norm)
    ]
    try:
        return rows, run()
    finally:
        for hook in hooks:
            hook.remove()


def pick(traced: Trace, rows: Sequence[int], top: Sequence[int] | None = None) -> Trace:
    """Some rows of every layer. `top`: those of the top layer and the final norm, if others. Rows
    that a run does not have are left out: then a comparison sees other shapes."""
    by_layer = [rows] * (len(traced) - 2) + [rows if top is None else top] * 2
    pairs = zip(traced, by_layer, strict=True)
    return [layer[[row for row in numbers if row < len(layer)]] for layer, numbers in pairs]


def flat_paths(prefix: Sequence[int], branches: Sequence[Sequence[int]]) -> list[list[int]]:
    """Each prompt's rows in the packed sequence, computed from the lengths and not from a layout,
    which could be wrong."""
    paths, start = [], len(prefix)
    for branch in branches:
        paths.append([*range(len(prefix)), *range(start, start + len(branch))])
        start += len(branch)
    return paths


def relative(a: Tensor, b: Tensor) -> float:
    """The largest difference of a row, as part of that row's size in `a`. Infinite if the shapes
    differ. A row of zeros differs by 0 from itself and by a huge number from any other."""
    if a.shape != b.shape:
        return math.inf
    sizes, differences = (
        x.double().square().mean(dim=-1).sqrt() for x in (a, a.double() - b.double())
    )
    return float((differences / sizes.clamp(min=torch.finfo(torch.float64).tiny)).max())


def absolute(a: Tensor, b: Tensor) -> float:
    """The largest difference of an entry; infinite if the shapes differ."""
    return math.inf if a.shape != b.shape else float((a.double() - b.double()).abs().max())


def largest(values: Sequence[float]) -> float:
    """The maximum; NaN if one value is. (max() of values with a NaN depends on their order.)"""
    return math.nan if any(map(math.isnan, values)) else max(values)


@dataclass
class Apart:
    """The largest differences between the rows of two runs, layer by layer, over so many `pairs` of
    runs: of an entry (`absolute`), and of a row as part of its size (`relative`). equal: whether
    all bits are."""

    absolute: list[float] = field(default_factory=list)
    relative: list[float] = field(default_factory=list)
    equal: bool = True
    pairs: int = 0

    def add(self, a: Trace, b: Trace) -> None:
        """Compare the rows of `b` with those of `a`."""
        self.equal, self.pairs = self.equal and all(map(torch.equal, a, b)), self.pairs + 1
        for maxima, measure in ((self.absolute, absolute), (self.relative, relative)):
            found = [measure(x, y) for x, y in zip(a, b, strict=True)]
            maxima[:] = [largest(pair) for pair in zip(maxima or found, found, strict=True)]


@dataclass
class Difference(Apart):
    """How far a packed run is from the separate ones. `absolute` and `relative` have an entry for
    each layer, the final norm, the label logits and the logits of the whole vocabulary.
    probabilities: the largest difference of a label's. changed: in how many of the prompts the most
    probable label is another."""

    probabilities: float = 0.0
    changed: int = 0

    def add(self, a: Trace, b: Trace) -> None:
        super().add(a, b)
        p, q = (rows[-2].softmax(dim=-1) for rows in (a, b))
        self.probabilities = largest([self.probabilities, absolute(p, q)])
        self.changed += int(p.argmax()) != int(q.argmax())


def alone(lm: LanguageModel, plan: Plan, group: int) -> Trace:
    """A prompt in a causal run by itself: its hidden states (T, D) after each layer and the final
    norm, and the logits of its labels at its end (1, m), float64 on the CPU. These are dot
    products, as the engines dense and tree compute them."""
    prompt = plan.prompts[group]
    hidden, _ = trace(lm.refined, lambda: run_alone(lm, plan.prefix + prompt.ids))
    ids = torch.tensor(prompt.label_ids, device=lm.decoder.device)
    return [*hidden, exact.logits(lm.refined, hidden[-1][-1:], ids).cpu().double()]


class Packed:
    """A packed run of a plan's prompts by an engine, or by dense under another layout."""

    def __init__(
        self, lm: LanguageModel, plan: Plan, engine: str, layout: Layout | None = None
    ) -> None:
        self.lm, self.engine, plan = lm, engine, replace(plan, layout=layout)
        decoder, tree = lm.decoder if engine == "plain" else lm.refined, engine == "tree"
        self.hidden, self.labels = trace(decoder, lambda: label_logits(lm, plan, engine))
        packed = pack(plan.prefix, plan.branches, tree=tree)
        self.paths = packed.paths() if tree else flat_paths(plan.prefix, plan.branches)
        # The tree's top layer has the ends only.
        self.ends = self.hidden[-1] if tree else self.hidden[-1][(layout or packed).ends]

    def rows(self, group: int) -> Trace:
        """What `alone` returns for a prompt, from this run."""
        top = [group] if self.engine == "tree" else None
        return [*pick(self.hidden, self.paths[group], top), self.labels[group][None]]

    def logits(self, group: int) -> Tensor:
        """The logits (1, V) at a prompt's end."""
        end = self.ends[group : group + 1]
        plain = self.engine == "plain"
        return self.lm.decoder.logits(end) if plain else exact.logits(self.lm.refined, end)

    def expected(self, alone: Trace) -> Trace:
        """What `rows` should be: the rows of a separate run that this run has."""
        *lower, top, final, labels = alone
        return [*lower, top[-1:], final[-1:], labels] if self.engine == "tree" else alone


@torch.inference_mode()
def compare(lm: LanguageModel, plan: Plan) -> dict[str, Difference]:
    """Run each prompt of the plan alone, and compare each engine and each ablation with that."""
    flat = pack(plan.prefix, plan.branches)
    rows = len(flat.tokens)
    layouts = flat.replace(mask=causal_mask(rows)), flat.replace(positions=torch.arange(rows))
    runs = {name: Packed(lm, plan, name) for name in ENGINES}
    runs |= {n: Packed(lm, plan, "dense", one) for n, one in zip(ABLATIONS, layouts, strict=True)}
    differences = {name: Difference() for name in runs}
    for group in range(len(plan.prompts)):
        separate = alone(lm, plan, group)
        logits = exact.logits(lm.refined, separate[-2][-1:])
        for name, run in runs.items():
            found = [*run.rows(group), run.logits(group)]
            differences[name].add([*run.expected(separate), logits], found)
    return differences


@torch.inference_mode()
def rounding(lm: LanguageModel, wide: LanguageModel, plan: Plan) -> Apart:
    """How far the separate runs of a model are from the same in float64: the same entries as a
    `Difference`, and so what rounding alone explains."""
    apart = Apart()
    for group in range(len(plan.prompts)):
        both = []
        for one in (wide, lm):
            rows = alone(one, plan, group)
            both.append([x.double() for x in (*rows, exact.logits(one.refined, rows[-2][-1:]))])
        apart.add(*both)
    return apart


def some(plan: Plan) -> Plan:
    """The plan with FEW of its prompts."""
    return replace(plan, prompts=[*few(plan.prompts)])


def few(items: Sequence[T]) -> Sequence[T]:
    """At most FEW of the items, spread over all."""
    return items[:: -(-len(items) // FEW)]


class _Wide(nn.Module):
    """A layer that computes in float64, by a copy that lives for one call."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.narrow = [layer]  # in a list it is no part of this module, and stays as it is

    def forward(self, *arguments: object) -> object:
        return copy.deepcopy(self.narrow[0]).double()(*arguments)


def widened(lm: LanguageModel) -> LanguageModel:
    """The same model in float64, its refined decoder too. It holds copies of the embedding and the
    output matrix; the layers are copied one at a time, when they run."""
    known: dict[int, Any] = {}  # what deepcopy takes as copied; so the two share their copies
    for decoder in (lm.decoder, lm.refined):
        known[id(decoder.model.layers)] = nn.ModuleList(map(_Wide, decoder.model.layers))
    plain, refined = (copy.deepcopy(one, known).double() for one in (lm.decoder, lm.refined))
    wide = replace(lm, decoder=plain)
    wide.__dict__["refined"] = refined  # in place of what the property would make
    return wide


@torch.inference_mode()
def influence(lm: LanguageModel, prefix: Sequence[int], branches: Sequence[Sequence[int]]) -> Apart:
    """Replace every token outside a group's own prompt by a random other one, in the dense and in
    the tree engine: the group's rows must stay equal bit for bit. This is done for FEW groups."""
    found, size = Apart(), lm.config.vocab_size
    for is_tree in (False, True) if len(branches) > 1 else ():
        layout = pack(prefix, branches, tree=is_tree)
        paths = layout.paths() if is_tree else flat_paths(prefix, branches)

        def run(tokens: Tensor, tree: Tree = layout, is_tree: bool = is_tree) -> Tensor:
            if not is_tree:
                return layout_ends(lm, tree.replace(tokens=tokens))
            changed = Tree(tokens, tree.parents, tree.positions, tree.ends)
            return exact.read_ends(lm.refined, changed)

        tokens, generator = layout.tokens, torch.Generator().manual_seed(0)
        whole, _ = trace(lm.refined, partial(run, tokens))
        for group in few(range(len(paths))):
            rows = [row for row in paths[group] if row < len(tokens)]
            shift = torch.randint(1, size, tokens.shape, generator=generator)
            shift[rows] = 0
            changed, _ = trace(lm.refined, partial(run, (tokens + shift) % size))
            top = [group] if is_tree else None  # the tree's top layer has the ends only
            found.add(pick(whole, rows, top), pick(changed, rows, top))
    return found
