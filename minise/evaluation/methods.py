"""The methods that are compared: each turns questions into prompts and their logits into answers.

All but the two fitted ones are plans: groups of choices and a prompt for each, so that all go
through the same packed machinery and the same mean (Eq. 3).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from minise.checkpoint import LanguageModel
from minise.ensemble import (
    ENGINES,
    Plan,
    branch_logits,
    check_dense_fits,
    check_fit,
    hidden_states,
    label_columns,
    label_logits,
    plan_groups,
    plan_standard,
    resolve,
)
from minise.errors import InputError
from minise.grouping import make_groups
from minise.layout import causal_mask, pack, token_counts
from minise.presets import Preset
from minise.prompt import Question, write_prompts

METHODS = {
    "standard": "one prompt with all choices",
    "self-ensemble": "the paper's method",
    "without-mask": "Self-Ensemble's packed sequence under a plain causal mask (the ablation)",
    "without-positions": "the same with positions 0, 1, 2, ... (the ablation)",
    "cyclic": "the mean over all K rotations of the full question",
    "cyclic-matched": "the mean over as many rotations as take Self-Ensemble's tokens",
    "vector-scaling": "standard, its logits scaled and shifted per label; fitted out of fold",
    "dirichlet": "standard, a regression on its log-probabilities; fitted out of fold",
}
FITTED = ("vector-scaling", "dirichlet")  # on labelled answers of standard inference
_ABLATIONS = ("without-mask", "without-positions")

# Four standard prompts in a forward pass take some 0.8 of the time of four passes on two CPU cores;
# an ensemble fills a pass by itself, and two in one take 1.1 times as long (tools/time_passes.py).
_STANDARD_PER_PASS = 4


@dataclass(frozen=True)
class Method:
    """One column of a table. `name` is its key in the results, `kind` one of METHODS; the rest is
    as in `self_ensemble`. Methods with the same non-empty `share` are run together: all their
    prompts of a question in one forward pass, equal ones once. The numbers are the same; time is
    then known for all of them only."""

    name: str
    kind: str
    group_size: int = 4
    trials: int = 20
    engine: str = "tree"
    preset: str = "paper"
    grouping: str | None = None
    null_option: bool | None = None
    max_tokens: int = 1_000_000
    share: str = ""

    def __post_init__(self) -> None:
        if self.kind not in METHODS:
            raise InputError(f'method "{self.kind}" is unknown; use one of {", ".join(METHODS)}')
        if self.engine not in ENGINES:
            raise InputError(f'engine "{self.engine}" is unknown; use one of {", ".join(ENGINES)}')

    @property
    def questions_per_pass(self) -> int:
        """How many questions share a forward pass: several where that is faster."""
        return _STANDARD_PER_PASS if (self.kind, self.engine) == ("standard", "tree") else 1

    def plan(self, lm: LanguageModel, question: Question, seed: int) -> Plan:
        """The prompts for one question."""
        preset = resolve(lm, self.preset, self.grouping, self.null_option)
        if self.kind == "standard":
            return plan_standard(lm, question, preset)
        if self.kind == "cyclic":
            return plan_rotations(lm, question, len(question.choices), seed, preset)
        ensemble = plan_groups(
            lm, question, self.group_size, self.trials, seed, preset, self.max_tokens
        )
        if self.kind == "cyclic-matched":
            return plan_matching_rotations(lm, question, ensemble, seed, preset)
        return ensemble

    def tokens(self, plan: Plan) -> int:
        """How many tokens this method runs for one question by itself."""
        engine = "dense" if self.kind in _ABLATIONS else self.engine
        return token_counts(plan.prompts.prefix, plan.prompts.branches)[engine]

    def logits(self, lm: LanguageModel, plans: Sequence[Plan]) -> list[list[Tensor]]:
        """For each plan each prompt's label logits (float64), all from one forward pass."""
        columns = label_columns(plans)
        if self.kind in _ABLATIONS:
            return [label_logits(p, columns, _ablated(lm, p, columns, self.kind)) for p in plans]
        if len(plans) == 1:
            prompts = plans[0].prompts
            rows = branch_logits(lm, prompts.prefix, prompts.branches, self.engine, columns)
            return [label_logits(plans[0], columns, rows)]
        # Whole prompts as branches of one tree, which merges what they share, equal ones wholly.
        whole = [
            [*plan.prompts.prefix, *branch] for plan in plans for branch in plan.prompts.branches
        ]
        distinct = {tuple(prompt): i for i, prompt in enumerate(dict.fromkeys(map(tuple, whole)))}
        rows = branch_logits(lm, [], [list(prompt) for prompt in distinct], self.engine, columns)
        places = iter([distinct[tuple(prompt)] for prompt in whole])
        return [
            label_logits(plan, columns, rows[[next(places) for _ in plan.groups]]) for plan in plans
        ]


def plan_rotations(
    lm: LanguageModel, question: Question, count: int, seed: int, preset: Preset
) -> Plan:
    """`count` rotations of the question with all its choices, as prompts of standard inference.

    First all K rotations of the order given; then those of a random permutation, and so on. Over
    each K of them, every choice stands once under every label.
    """
    K = len(question.choices)
    orders = [list(range(K))]
    if count > K:
        orders += make_groups(K, K, -(-count // K) - 1, seed, f"{question.id}/rotations")
    groups = [order[i:] + order[:i] for order in orders for i in range(K)][:count]
    listed = [[question.choices[i] for i in group] for group in groups]
    prompts = write_prompts(lm.tokenizer, preset.standard_template, question.text, listed)
    return Plan(question, groups, [1.0] * count, prompts)


def plan_matching_rotations(
    lm: LanguageModel, question: Question, ensemble: Plan, seed: int, preset: Preset
) -> Plan:
    """As many rotations as come nearest to the tokens of an ensemble's prompts, all merged; a few
    choices may not have orders enough to reach them."""
    budget = token_counts(ensemble.prompts.prefix, ensemble.prompts.branches)["tree"]
    prompts = plan_standard(lm, question, preset).prompts
    own = len(prompts.prefix) + len(prompts.branches[0]) - len(ensemble.prompts.prefix)
    # What rotations share makes them cheaper than that; twice as many are always enough.
    many = plan_rotations(lm, question, 2 * -(-budget // own), seed, preset)
    # A tree's rows are numbered as they come: after r branches there are as many as the last end.
    layout = pack(many.prompts.prefix, many.prompts.branches, tree=True)
    tokens = layout.ends.cummax(0).values + 1
    count = int((tokens - budget).abs().argmin()) + 1
    prompts = replace(
        many.prompts,
        branches=many.prompts.branches[:count],
        label_ids=many.prompts.label_ids[:count],
    )
    return replace(many, groups=many.groups[:count], weights=many.weights[:count], prompts=prompts)


@torch.inference_mode()
def _ablated(lm: LanguageModel, plan: Plan, columns: Sequence[int], kind: str) -> Tensor:
    """Logits (G, C) at the groups' ends of the paper's packed sequence, with one of its two parts
    left out. Without positions a sequence may run past the model's: that is the ablation."""
    check_fit(lm, plan.prompts.prefix, plan.prompts.branches)
    layout = pack(plan.prompts.prefix, plan.prompts.branches)
    T = len(layout.tokens)
    check_dense_fits(lm, T)
    mask = causal_mask(T) if kind == "without-mask" else layout.mask
    positions = torch.arange(T) if kind == "without-positions" else layout.positions
    hidden = hidden_states(lm, layout.tokens, positions, mask)
    ends = hidden[layout.ends.to(hidden.device)]
    return lm.decoder.logits(ends, torch.tensor(columns, device=hidden.device))
