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
        return _packed(super().plan(lm, question, seed), mask=causal_mask)


class WithoutPositions(SelfEnsemble):
    """Without positional re-encoding (Eq. 4): the position ids of the packed sequence are 0, 1, 2,
    ..., even beyond the model's last position."""

    name: ClassVar[str] = "without-positions"

    def plan(self, lm: LanguageModel, question: Question, seed: int = 0) -> Plan:
        return _packed(super().plan(lm, question, seed), positions=torch.arange)


def _packed(plan: Plan, **parts: Callable[[int], Tensor]) -> Plan:
    """The plan with one packed layout. `parts`: functions of the number of tokens that give another
    mask or other positions."""
    layout = pack(plan.prefix, plan.branches)
    T = len(layout.tokens)
    check_mask_fits(T)  # before a mask is built
    return replace(plan, layout=layout.replace(**{name: part(T) for name, part in parts.items()}))
