"""Prove, for the prompts of a plan, that packed runs equal separate runs: for all weights.

The engines run on symbols (symbols.py): equal hashes are the same operations on the same data. With
shapes of calls, dense and tree are compared with separate; without, the others with `_defined`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from minise.attention import masked_attention
from minise.engines import LanguageModel
from minise.method import Plan
from minise.verify.comparison import Rows, expected, rows_of
from minise.verify.recording import record
from minise.verify.symbols import CallSymbols, Symbols, symbolic

BY_CALLS = ("dense", "tree")  # compared with a separate run; the others with the definition
ENGINES = (*BY_CALLS, "separate", "plain")
PROVED = """proved for all weights of this shape: in exact arithmetic separate and plain compute
  each prompt as it is defined, alone, causal and within its windows; and the bits of
  dense and tree are those of separate. docs/verify.md lists what is assumed."""

Run = Callable[[LanguageModel, Plan], Iterator[Rows]]  # of a plan with one prompt
_separate = partial(rows_of, engine="separate", with_logits=False)


@dataclass(frozen=True)
class Proof:
    """What `prove` found. rows: how many rows were compared, by engine. tokens: of all prompts, the
    prefix once for each. departures: for each engine that differs, where it does so first: the
    layer, the prompt ("branch", from 0) and its token, in words."""

    tokens: int
    groups: int
    layers: int
    rows: dict[str, int]
    departures: dict[str, str]

    @property
    def passed(self) -> bool:
        return not self.departures

    def __str__(self) -> str:
        size = f"{self.tokens:,} tokens of {self.groups} group prompts, in {self.layers} layers"
        lines = [f"{size}, run on symbols (no weights are read)", ""]
        for engine, rows in self.rows.items():
            same = "operations and calls of a separate run" if engine in BY_CALLS else "as defined"
            differs = "NOT " * (engine in self.departures)
            lines.append(f"  {engine:10}{rows:>10,} rows  {differs}{same}")
        failed = [f"FAILED: {one} differs first in {at}" for one, at in self.departures.items()]
        return "\n".join([*lines, "", *(failed or [PROVED])])


class Prover:
    """Proves plans for a model's config: it needs no weights. Runs of single prompts are kept."""

    def __init__(self, lm: LanguageModel) -> None:
        self.calls, self.exact = symbolic(lm, CallSymbols), symbolic(lm, Symbols)
        self.known: dict[tuple[object, ...], Rows] = {}

    @torch.inference_mode()
    def prove(self, plan: Plan, engines: Sequence[str] = ENGINES) -> Proof:
        """Run the plan's prompts on symbols in these engines, and compare every row of every token
        after each layer and the final norm, and the label logits. Raises InputError for prompts, a
        mask or scores that do not fit."""
        plan = replace(plan, layout=None)
        rows: dict[str, int] = {}
        departures: dict[str, str] = {}
        for engine in engines:
            lm, right = (self.calls, _separate) if engine in BY_CALLS else (self.exact, _defined)
            packed = rows_of(lm, plan, engine, with_logits=False)  # runs when it is read
            found = [*(self._alone(_separate, lm, plan) if engine == "separate" else packed)]
            alone = [expected(lm, engine, one) for one in self._alone(right, lm, plan)]
            rows[engine] = sum(len(layer) for branch in found for layer in branch)
            if departure := _first(plan, alone, found):
                departures[engine] = departure
        layers = self.exact.config.num_hidden_layers
        return Proof(plan.tokens("separate"), len(plan.prompts), layers, rows, departures)

    def _alone(self, run: Run, lm: LanguageModel, plan: Plan) -> Iterator[Rows]:
        """Each prompt's rows in a run of it alone."""
        for prompt in plan.prompts:
            key = (run, lm.decoder, *plan.prefix, *prompt.ids, tuple(prompt.label_ids or ()))
            if key not in self.known:
                (self.known[key],) = run(lm, replace(plan, prompts=[prompt]))
            yield self.known[key]


def _defined(lm: LanguageModel, plan: Plan) -> Iterator[Rows]:
    """A plan's only prompt as it is defined: with no layout, no reader and no engine."""
    decoder, (prompt,) = lm.decoder, plan.prompts
    tokens = torch.tensor([plan.prefix + prompt.ids])
    positions = torch.arange(tokens.shape[1])
    back = positions[:, None] - positions

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        window = lm.config.sliding_windows[layer]
        return masked_attention(q, k, v, (back >= 0) & (back < (window or len(back)))[None])

    with record(decoder) as seen:
        hidden = decoder.run(tokens, positions[None], attend)[0]
    head = decoder.model.embed_tokens if decoder.lm_head is None else decoder.lm_head
    layers = [x[0] for x in seen.residual.values()]
    yield [*layers, hidden, F.linear(hidden[-1:], head.weight[prompt.label_ids])]


def _first(plan: Plan, alone: list[Rows], found: list[Rows]) -> str:
    """The first layer, branch and token of which the rows differ, in words; empty if none do."""
    layers = [f"layer {i}" for i in range(len(alone[0]) - 2)]
    for layer, name in enumerate([*layers, "final norm", "label logits"]):
        for branch, both in enumerate(zip(alone, found, strict=True)):
            a, b = (rows[layer].as_subclass(Tensor) for rows in both)
            if torch.equal(a, b):
                continue
            token = len(plan.prefix) + len(plan.branches[branch]) - 1
            if a.shape == b.shape and len(a) > 1:
                token = int((a != b).any(dim=1).nonzero()[0])
            return f"{name}, branch {branch}, token {token}"
    return ""
