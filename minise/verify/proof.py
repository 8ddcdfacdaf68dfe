"""Prove, for the prompts of a plan, that packed runs equal separate runs: for all weights.

The engines run on symbols (symbols.py): equal hashes are the same operations on the same data.
Bits: dense and tree make every row of every prompt as its separate run does, in calls of the same
shapes; docs/verify.md lists what is assumed. Arithmetic: separate and plain compute what `_defined`
says: token i reads the tokens up to i within the window.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from minise.attention import masked_attention
from minise.checks import check_prompts
from minise.engines import LanguageModel
from minise.layout import pack
from minise.method import Plan
from minise.verify.comparison import Packed, Trace, alone, flat_paths, trace
from minise.verify.symbols import CallSymbols, Symbols, symbolic

BY_CALLS = ("dense", "tree")  # compared with a separate run; the others with the definition
ENGINES = (*BY_CALLS, "separate", "plain")
PROVED = """proved for all weights of this shape: in exact arithmetic separate and plain compute
  each prompt as it is defined, alone, causal and within its windows; and the bits of
  dense and tree are those of separate. docs/verify.md lists what is assumed."""
Run = Callable[[LanguageModel, Plan, int], Trace]  # of one prompt


@dataclass(frozen=True)
class Departure:
    """Where an engine departs: the first layer in which a row differs, in it the first prompt
    ("branch", from 0), and the first token of that prompt. `what`: in words."""

    engine: str
    layer: str
    branch: int
    token: int
    what: str

    def __str__(self) -> str:
        where = f"{self.layer}, branch {self.branch}, token {self.token}"
        return f"{self.engine} differs first in {where}: {self.what}"


@dataclass(frozen=True)
class Proof:
    """What `prove` found. rows: how many rows were compared, by engine. tokens: of all prompts, the
    prefix once for each. departures: at most one for each engine."""

    tokens: int
    groups: int
    layers: int
    rows: dict[str, int]
    departures: list[Departure]

    @property
    def passed(self) -> bool:
        return not self.departures

    def __str__(self) -> str:
        size = f"{self.tokens:,} tokens of {self.groups} group prompts, in {self.layers} layers"
        lines = [f"{size}, run on symbols (no weights are read)", ""]
        failed = {one.engine: f"FAILED: {one}" for one in self.departures}
        for engine, rows in self.rows.items():
            calls = "the operations and calls of a separate run"
            same = f"{'NOT ' * (engine in failed)}{calls if engine in BY_CALLS else 'as defined'}"
            lines.append(f"  {engine:10}{rows:>10,} rows  {same}")
        return "\n".join([*lines, "", *(failed.values() or [PROVED])])


class Prover:
    """Proves plans for a model's config: it needs no weights. Runs of single prompts are kept."""

    def __init__(self, lm: LanguageModel) -> None:
        self.calls, self.exact = symbolic(lm, CallSymbols), symbolic(lm, Symbols)
        self.known: dict[tuple[object, ...], Trace] = {}

    @torch.inference_mode()
    def prove(self, plan: Plan, engines: Sequence[str] = ENGINES) -> Proof:
        """Run the plan's prompts on symbols in these engines, and compare every row of every token
        after each layer and the final norm, and the label logits. Raises InputError for prompts, a
        mask or scores that do not fit."""
        labels = [i for prompt in plan.prompts for i in prompt.label_ids or ()]
        check_prompts(self.exact, plan.prefix, plan.branches, labels)
        rows: dict[str, int] = {}
        departures: list[Departure] = []
        for engine in engines:
            lm, right = (self.calls, alone) if engine in BY_CALLS else (self.exact, _defined)
            every = range(len(plan.prompts))
            expected = [self._one(lm, plan, group, right) for group in every]
            if engine == "separate":
                found = [self._one(lm, plan, group, _separate) for group in every]
            else:
                run = Packed(lm, plan, engine)
                expected = [*map(run.expected, expected)]
                found = [*map(run.rows, every)]
            rows[engine] = sum(len(layer) for branch in found for layer in branch)
            departures += _first(plan, engine, expected, found)
        tokens = sum(len(plan.prefix) + len(branch) for branch in plan.branches)
        layers = self.exact.config.num_hidden_layers
        return Proof(tokens, len(plan.prompts), layers, rows, departures)

    def _one(self, lm: LanguageModel, plan: Plan, group: int, run: Run) -> Trace:
        prompt = plan.prompts[group]
        key = (run, *plan.prefix, *prompt.ids, tuple(prompt.label_ids or ()))
        if key not in self.known:
            self.known[key] = run(lm, plan, group)
        return self.known[key]


def _separate(lm: LanguageModel, plan: Plan, group: int) -> Trace:
    """A prompt as the engine separate runs it."""
    return Packed(lm, replace(plan, prompts=[plan.prompts[group]]), "separate").rows(0)


def _defined(lm: LanguageModel, plan: Plan, group: int) -> Trace:
    """A prompt as it is defined: with no layout, no reader and no engine."""
    decoder, prompt = lm.decoder, plan.prompts[group]
    tokens = torch.tensor(plan.prefix + prompt.ids)
    positions = torch.arange(len(tokens))
    back = positions[:, None] - positions

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        window = lm.config.sliding_windows[layer]
        return masked_attention(q, k, v, (back >= 0) & (back < (window or len(back)))[None])

    rows, _ = trace(decoder, lambda: decoder.run(tokens[None], positions[None], attend))
    head = decoder.model.embed_tokens if decoder.lm_head is None else decoder.lm_head
    return [*rows, F.linear(rows[-1][-1:], head.weight[prompt.label_ids])]


def _first(
    plan: Plan, engine: str, expected: list[Trace], found: list[Trace]
) -> Iterator[Departure]:
    """The first layer, branch and token of which the rows differ, if any do."""
    layers = [f"layer {i}" for i in range(len(expected[0]) - 2)]
    for layer, name in enumerate([*layers, "final norm", "label logits"]):
        for branch, (one, other) in enumerate(zip(expected, found, strict=True)):
            a, b = (rows[layer].as_subclass(Tensor) for rows in (one, other))
            if torch.equal(a, b):
                continue
            token = len(plan.prefix) + len(plan.branches[branch]) - 1
            if a.shape == b.shape and len(a) > 1:
                token = int((a != b).any(dim=1).nonzero()[0])
            yield Departure(engine, name, branch, token, _what(plan, engine, branch, token))
            return


def _what(plan: Plan, engine: str, branch: int, token: int) -> str:
    """What is wrong with a token of the layout that the engine runs, in words."""
    if engine == "separate":
        return "its separate run is not what is defined: masks, windows or calls of one prompt"
    tree = engine == "tree"
    layout = pack(plan.prefix, plan.branches, tree=tree)
    path = layout.paths()[branch] if tree else flat_paths(plan.prefix, plan.branches)[branch]
    if token >= len(path) or path[-1] >= len(layout.tokens):
        return "its layout has too few tokens"
    row, right = path[token], [*plan.prefix, *plan.branches[branch]][token]
    is_id, place = int(layout.tokens[row]), int(layout.positions[row])
    if is_id != right:
        return f"it is token id {is_id}, not {right}"
    if place != token:
        return f"its position is {place}, not {token}"
    right_rows = set(path[: token + 1])
    seen = right_rows if tree else {*layout.mask[row].nonzero().flatten().tolist()}
    for other in sorted(seen ^ right_rows):  # the tree has no mask
        return f"it may{'' if other in seen else ' not'} attend to row {other} of the layout"
    return "its token, position and mask are right: what it reads or how it is read out is not"
