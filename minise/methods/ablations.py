"""Self-Ensemble's packed sequence with one of its two parts left out (the paper's ablation)."""

from dataclasses import replace
from typing import ClassVar

import torch

from minise.checks import check_mask_fits
from minise.engines import LanguageModel
from minise.layout import Tree, causal_mask, pack
from minise.method import Plan, SelfEnsemble
from minise.question import Question


class WithoutMask(SelfEnsemble):
    """Without the mask (Eq. 3): every token attends to all tokens before it."""

    name: ClassVar[str] = "without-mask"

    def plan(self, lm: LanguageModel, question: Question, seed: int = 0) -> Plan:
        plan = super().plan(lm, question, seed)
        packed = _packed(plan)
        return replace(plan, layout=packed.replace(mask=causal_mask(len(packed.tokens))))


class WithoutPositions(SelfEnsemble):
    """Without positional re-encoding (Eq. 4): the position ids of the packed sequence are 0, 1, 2,
    ..., even beyond the model's last position."""

    name: ClassVar[str] = "without-positions"

    def plan(self, lm: LanguageModel, question: Question, seed: int = 0) -> Plan:
        plan = super().plan(lm, question, seed)
        packed = _packed(plan)
        return replace(plan, layout=packed.replace(positions=torch.arange(len(packed.tokens))))


def _packed(plan: Plan) -> Tree:
    layout = pack(plan.prefix, plan.branches)
    check_mask_fits(len(layout.tokens))  # before a mask is built
    return layout
