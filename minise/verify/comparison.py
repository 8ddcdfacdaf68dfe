"""Compare packed runs with separate runs, and check that no group depends on another."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from minise.engines import LanguageModel
from minise.equal_bits import run as exact
from minise.layout import causal_mask, pack
from minise.method import Plan, label_logits
from minise.verify.recording import record

ENGINES, ABLATIONS = ("dense", "tree", "plain"), ("without_mask", "without_positions")
FEW = 8  # prompts, at most and spread over all, where all would take too long or too much memory
ZERO = torch.zeros((), dtype=torch.float64)
Some = Sequence[int] | None  # numbers of prompts, from 0; None is all
Rows = list[Tensor]  # of one prompt, in a run: what `rows_of` gives


def rows_of(
    lm: LanguageModel, plan: Plan, engine: str, with_logits: bool = True, groups: Some = None
) -> Iterator[Rows]:
    """The rows of the prompts `groups`, by default of all, in the run of an engine: hidden states
    (T, D) after each layer and the final norm; label logits (1, m), float64 on the CPU; all logits
    (1, V) at the end. The engine separate has a run for each prompt. The tree has only the end (1,
    D) after the top layer and the norm."""
    groups = range(len(plan.prompts)) if groups is None else groups
    if engine == "separate" and len(plan.prompts) > 1:
        for i in groups:
            yield from rows_of(lm, replace(plan, prompts=[plan.prompts[i]]), engine, with_logits)
        return
    with record(lm.decoder if engine == "plain" else lm.refined) as seen:
        labels = label_logits(lm, plan, engine)
    read = lm.decoder.logits if engine == "plain" else partial(exact.logits, lm.refined)
    *lower, top, final = (x.flatten(0, -2) for x in (*seen.residual.values(), seen.final))
    paths = pack(plan.prefix, plan.branches, tree=engine == "tree").paths()
    for group in groups:
        path, ends = paths[group], [group] if engine == "tree" else paths[group]
        rows = [*(x[path] for x in lower), top[ends], final[ends], labels[group][None]]
        yield [*rows, read(final[ends[-1:]])] if with_logits else rows


def expected(lm: LanguageModel, engine: str, separate: Rows) -> Rows:
    """The rows of a separate run that an engine has: of the tree's last ones only the end."""
    if engine != "tree":
        return separate
    top = lm.config.num_hidden_layers - 1
    return separate[:top] + [x[-1:] for x in separate[top:]]


def relative(a: Tensor, b: Tensor) -> float:
    """The largest difference of a row, as part of that row's size in `a`. Infinite if the shapes
    differ. A row of zeros differs by 0 from itself and by a huge number from any other."""
    if a.shape != b.shape:
        return math.inf
    sizes, differences = (
        x.double().square().mean(dim=-1).sqrt() for x in (a, a.double() - b.double())
    )
    return float((differences / sizes.clamp(min=torch.finfo(torch.float64).tiny)).max())


@dataclass
class Difference:
    """The largest differences between two runs, over so many `pairs` of prompts. relative: float64,
    of a row as part of its size, in each layer, the final norm, the label logits and the logits of
    the whole vocabulary. absolute: of an entry, in each of these and in the probabilities of the
    labels. A NaN stays. equal: whether all bits are. changed: in how many of the prompts the most
    probable label is another."""

    relative: Tensor = ZERO
    absolute: Tensor = ZERO
    equal: bool = True
    changed: int = 0
    pairs: int = 0

    @property
    def most(self) -> float:
        """The largest of `relative`; NaN if one is."""
        return float(self.relative.max())

    def add(self, a: Rows, b: Rows) -> None:
        """Compare the rows of a prompt with those, `a`, of another run."""
        a, b = ([x.double() for x in rows] for rows in (a, b))
        p, q = (rows[-2].softmax(dim=-1) for rows in (a, b))
        pairs = zip([*a, p], [*b, q], strict=True)
        gaps = [float((x - y).abs().max()) if x.shape == y.shape else math.inf for x, y in pairs]
        self.absolute = torch.maximum(self.absolute, ZERO.new_tensor(gaps))
        self.relative = torch.maximum(self.relative, ZERO.new_tensor([*map(relative, a, b)]))
        self.equal = self.equal and all(map(torch.equal, a, b))
        self.changed += int(p.argmax()) != int(q.argmax())
        self.pairs += 1


@torch.inference_mode()
def compare(
    lm: LanguageModel, plan: Plan, narrow: LanguageModel | None = None
) -> dict[str, Difference]:
    """Run each prompt of the plan alone, and compare each engine and each ablation with that. And
    "rounding", the separate runs of `narrow`, the same model in its own dtype."""
    flat = pack(plan.prefix, plan.branches)
    rows = len(flat.tokens)
    layouts = flat.replace(mask=causal_mask(rows)), flat.replace(positions=torch.arange(rows))
    runs = {engine: rows_of(lm, plan, engine) for engine in ENGINES}
    for name, layout in zip(ABLATIONS, layouts, strict=True):
        runs[name] = rows_of(lm, replace(plan, layout=layout), "dense")
    if narrow:
        runs["rounding"] = rows_of(narrow, plan, "separate")
    differences = {name: Difference() for name in runs}
    for separate in rows_of(lm, plan, "separate"):
        for name, run in runs.items():
            differences[name].add(expected(lm, name, separate), next(run))
    return differences


def in_float64(lm: LanguageModel, plan: Plan) -> dict[str, Difference]:
    """The same in float64, with FEW of the prompts."""
    return compare(widened(lm), some(plan), narrow=lm)


def some(plan: Plan) -> Plan:
    """The plan with FEW of its prompts."""
    return replace(plan, prompts=plan.prompts[:: -(-len(plan.prompts) // FEW)])


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
def influence(lm: LanguageModel, plan: Plan) -> Difference:
    """Replace every token outside a group's own prompt by a random other one, where the decoder
    reads its tokens, in the engines dense and tree: the group's rows must stay equal bit for bit.
    This is done for FEW groups."""
    found, size = Difference(), lm.config.vocab_size

    def scrambled(shift: Tensor, _: object, given: tuple[Tensor]) -> tuple[Tensor]:
        return ((given[0] + shift) % size,)

    for engine in ("dense", "tree") if len(plan.prompts) > 1 else ():
        layout = pack(plan.prefix, plan.branches, tree=engine == "tree")
        paths, generator = layout.paths(), torch.Generator().manual_seed(0)
        groups = range(0, len(paths), -(-len(paths) // FEW))
        for group, before in zip(groups, rows_of(lm, plan, engine, groups=groups), strict=True):
            shift = torch.randint(1, size, layout.tokens.shape, generator=generator)
            shift[paths[group]] = 0
            hook = partial(scrambled, shift.to(lm.decoder.device))
            with lm.refined.model.embed_tokens.register_forward_pre_hook(hook):
                (after,) = rows_of(lm, plan, engine, groups=[group])
            found.add(before, after)
    return found
