"""Compare packed runs with separate runs of the same prompts: every row, every layer, the logits,
and the label logits as answers read them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from minise.engines import LanguageModel, run_alone
from minise.exact import run as exact
from minise.layout import Layout, causal_mask, pack
from minise.method import Plan, label_logits
from minise.verify.traces import Apart, Trace, absolute, flat_paths, largest, pick, trace

ENGINES, ABLATIONS = ("dense", "tree", "plain"), ("without_mask", "without_positions")
FEW = 8  # prompts, at most, where all would take too long or too much memory


@dataclass
class Difference(Apart):
    """How far a packed run is from the separate ones. `absolute` and `relative` have an entry for
    each layer, the final norm, the label logits and the logits of the whole vocabulary.
    probabilities: the largest difference of a label's. changed: in how many of the `prompts` the
    most probable label is another."""

    probabilities: float = 0.0
    changed: int = 0
    prompts: int = 0

    def add(self, a: Trace, b: Trace) -> None:
        super().add(a, b)
        p, q = (rows[-2].softmax(dim=-1) for rows in (a, b))
        self.probabilities = largest([self.probabilities, absolute(p, q)])
        self.changed += int(p.argmax()) != int(q.argmax())
        self.prompts += 1


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
        decoder = lm.decoder if engine == "plain" else lm.refined
        self.hidden, self.labels = trace(decoder, lambda: label_logits(lm, plan, engine))
        tree = engine == "tree"
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
    T = len(flat.tokens)
    layouts = flat.replace(mask=causal_mask(T)), flat.replace(positions=torch.arange(T))
    runs = {name: Packed(lm, plan, name) for name in ENGINES}
    for name, layout in zip(ABLATIONS, layouts, strict=True):
        runs[name] = Packed(lm, plan, "dense", layout)
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
            separate = alone(one, plan, group)
            logits = exact.logits(one.refined, separate[-2][-1:])
            both.append([rows.double() for rows in (*separate, logits)])
        apart.add(*both)
    return apart


def some(plan: Plan) -> Plan:
    """The plan with at most FEW of its prompts, spread over all."""
    return replace(plan, prompts=plan.prompts[:: -(-len(plan.prompts) // FEW)])
