"""Prove, for given prompts, that packed runs equal separate runs: for all weights.

The engines run on symbols (symbols.py): equal hashes are the same operations on the same data. In
exact arithmetic packed and tree are compared with separate, and separate with the definition. With
the shapes of calls, which say what the bits are, the same is done for the decoder of equal bits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from minise.config import Config
from minise.engines import token_counts
from minise.errors import InputError
from minise.lab.proof.alone import defined
from minise.lab.proof.symbols import VOCABULARY, CallSymbols, Symbols, raw, symbolic
from minise.lm import LocalModel
from minise.prompts import Prompts, check_prompts
from minise.verify.comparison import Rows, one_prompt, rows_of
from minise.verify.recording import own_decoder

PROVED = """proved for all weights of this shape: in exact arithmetic separate computes each prompt
  as it is defined, alone, causal and within its windows, and packed and tree do what separate
  does. With equal bits too, and there the bits are those of separate. docs/verify.md lists what
  is assumed."""

Run = Callable[[LocalModel, Prompts], Rows]  # of one prompt


@dataclass(frozen=True)
class Claim:
    """The rows of an engine under a symbolic model are those of `right`, the run of each prompt
    alone. same: what that means, in words."""

    engine: str
    lm: LocalModel
    right: Run
    same: str


@dataclass(frozen=True)
class Proof:
    """What `prove` found. tokens: of all prompts, the prefix once for each. rows: how many rows
    were compared, by claim. departures: for each claim that fails, where the rows differ first: the
    layer, the prompt ("branch", from 0) and its token, in words. same: what was compared."""

    tokens: int
    groups: int
    layers: int
    rows: dict[str, int]
    departures: dict[str, str]
    same: dict[str, str]

    @property
    def passed(self) -> bool:
        return not self.departures

    def __str__(self) -> str:
        size = f"{self.tokens:,} tokens of {self.groups} group prompts, in {self.layers} layers"
        lines = [f"{size}, run on symbols (no weights are read)", ""]
        for name, rows in self.rows.items():
            differs = "NOT " if name in self.departures else ""
            lines.append(f"  {name:22}{rows:>10,} rows  {differs}{self.same[name]}")
        lines.append("")
        for name, where in self.departures.items():
            lines.append(f"FAILED: {name} differs first in {where}")
        if self.passed:
            lines.append(PROVED)
        return "\n".join(lines)


class Prover:
    """Proves prompts for a model's config: it needs no weights. Runs of single prompts are kept."""

    def __init__(self, config: Config) -> None:
        nothing: Any = None
        self.lm = LocalModel("the model", config, nothing, nothing)
        plain = symbolic(config, Symbols)
        fixed = symbolic(config, Symbols, equal_bits=True)
        calls = symbolic(config, CallSymbols, equal_bits=True)
        numbers = "operations of a separate run"
        bits = "operations and calls of a separate run"
        self.claims = {
            "separate": Claim("separate", plain, defined, "as defined"),
            "packed": Claim("packed", plain, separate, numbers),
            "tree": Claim("tree", plain, separate, numbers),
            "separate, equal bits": Claim("separate", fixed, defined, "as defined"),
            "packed, equal bits": Claim("packed", calls, separate, bits),
            "tree, equal bits": Claim("tree", calls, separate, bits),
        }
        self.known: dict[tuple[object, ...], Rows] = {}
        self.symbol_of: dict[int, int] = {}

    @torch.inference_mode()
    def prove(self, prompts: Prompts, names: Sequence[str] | None = None) -> Proof:
        """Run the prompts on symbols for these claims, by default all, and compare every row of
        every token after each layer, those of the ends after the top layer and the final norm, and
        the label logits. Raises InputError for prompts or a mask that do not fit."""
        prompts = self.renamed(prompts)
        rows: dict[str, int] = {}
        departures: dict[str, str] = {}
        same: dict[str, str] = {}
        for name in self.claims if names is None else names:
            claim = self.claims[name]
            expected = self._alone(claim.right, claim.lm, prompts)
            if claim.engine == "separate":
                found = self._alone(separate, claim.lm, prompts)
            else:
                found = list(rows_of(claim.lm, prompts, claim.engine))
            rows[name] = 0
            for prompt_rows in found:
                for part in compared(prompt_rows):
                    rows[name] += len(part)
            same[name] = claim.same
            departure = first_difference(prompts, expected, found)
            if departure:
                departures[name] = departure
        tokens = token_counts(prompts.prefix, prompts.branches)["separate"]
        layers = own_decoder(self.claims["separate"].lm).config.num_hidden_layers
        return Proof(tokens, len(prompts.branches), layers, rows, departures, same)

    def renamed(self, prompts: Prompts) -> Prompts:
        """The prompts with the ids 0, 1, 2, ... in the order in which tokens come: what holds for
        all weights holds for those of a smaller vocabulary."""
        check_prompts(self.lm, prompts)

        def rename(ids: Sequence[int]) -> list[int]:
            return [self.symbol_of.setdefault(token, len(self.symbol_of)) for token in ids]

        prefix = rename(prompts.prefix)
        branches = [rename(branch) for branch in prompts.branches]
        label_ids = [rename(ids) for ids in prompts.label_ids]
        if len(self.symbol_of) > VOCABULARY:
            what = f"{len(self.symbol_of):,} different tokens"
            raise InputError(f"{what}, and a proof takes {VOCABULARY:,}; use a shorter question")
        return Prompts(prefix, branches, label_ids)

    def _alone(self, run: Run, lm: LocalModel, prompts: Prompts) -> list[Rows]:
        """Each prompt's rows in a run of it alone."""
        found = []
        for number in range(len(prompts.branches)):
            alone = one_prompt(prompts, number)
            whole = (*alone.prefix, *alone.branches[0])
            key = (run, lm.decoder, whole, tuple(alone.label_ids[0]))
            if key not in self.known:
                self.known[key] = run(lm, alone)
            found.append(self.known[key])
        return found


def separate(lm: LocalModel, prompts: Prompts) -> Rows:
    """An only prompt in the engine separate."""
    (rows,) = rows_of(lm, prompts, "separate")
    return rows


def compared(rows: Rows) -> list[Tensor]:
    """The rows that are compared. The logits of the whole vocabulary are left out."""
    return [*rows.states, rows.labels]


def first_difference(prompts: Prompts, expected: list[Rows], found: list[Rows]) -> str:
    """The first layer, branch and token of which the rows differ, in words; empty if none do."""
    layers = len(expected[0].states) - 1
    names = [f"layer {layer}" for layer in range(layers)]
    names += ["final norm", "label logits"]
    for place, name in enumerate(names):
        for branch in range(len(prompts.branches)):
            right = raw(compared(expected[branch])[place])
            other = raw(compared(found[branch])[place])
            if torch.equal(right, other):
                continue
            token = len(prompts.prefix) + len(prompts.branches[branch]) - 1
            if right.shape == other.shape and len(right) > 1:
                differs = (right != other).any(dim=1)
                token = int(differs.nonzero()[0])
            return f"{name}, branch {branch}, token {token}"
    return ""
