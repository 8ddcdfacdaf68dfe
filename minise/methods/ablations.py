"""Self-Ensemble's packed sequence with one of its two parts left out (the paper's ablation)."""

from collections.abc import Callable
from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor

from minise.engines import LanguageModel, check_mask_fits
from minise.layout import causal_mask, pack
from minise.method import Plan, SelfEnsemble
from minise.question import Question


class WithoutMask(SelfEnsemble):
    """Without the mask (Eq. 3): every token attends to all tokens before it."""

    name: ClassVar[str] = "without-mask"

    def plan(self, lm: LanguageModel, question: Question, seed: int = 0) -> Plan:
        return _packed(lm, super().plan(lm, question, seed), mask=causal_mask)


class WithoutPositions(SelfEnsemble):
    """Without positional re-encoding (Eq. 4): position ids run through the packed sequence, even
    beyond those of the model."""

    name: ClassVar[str] = "without-positions"

    def plan(self, lm: LanguageModel, question: Question, seed: int = 0) -> Plan:
        return _packed(lm, super().plan(lm, question, seed), positions=torch.arange)


def _packed(lm: LanguageModel, plan: Plan, **plain: Callable[[int], Tensor]) -> Plan:
    """The plan as one packed sequence, with the named parts of its layout made from its length."""
    layout = pack(plan.prefix, plan.branches)
    T = len(layout.tokens)
    check_mask_fits(T)  # before a mask is built
    return replace(plan, layout=layout.replace(**{part: plain[part](T) for part in plain}))
