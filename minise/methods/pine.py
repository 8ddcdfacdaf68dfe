"""PINE: all choices see each other, and each reader has the most important ones nearest.

Dimension legend: T tokens, H query heads, h head_dim, C choices.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from minise.methods.rotor import Reordered, RoToR


class ByImportance(Reordered):
    """Each reader's order of the choices is that of their importance for it, in each head."""

    def nearest(self, q_THh: Tensor, k_THh: Tensor) -> Tensor:
        C = len(self.lengths)
        scores_HTT = torch.einsum("thd,uhd->htu", q_THh, k_THh) / math.sqrt(q_THh.shape[-1])
        is_choice = (self.owner >= 0) & (self.owner < C)
        # Over the tokens of all choices; for a choice, over those of the others.
        outside = ~is_choice | (self.owner[:, None] == self.owner)
        lowest = torch.finfo(scores_HTT.dtype).min
        weights_HTT = scores_HTT.masked_fill(outside, lowest).softmax(dim=-1)
        member_TC = (self.owner[:, None] == torch.arange(C, device=self.owner.device)).to(
            weights_HTT.dtype
        )
        by_token_HTC = weights_HTT @ (member_TC / self.lengths)
        by_choice_HCC = member_TC.T @ by_token_HTC  # the sum over the reading choice's tokens
        by_choice_HCC.diagonal(dim1=-2, dim2=-1).fill_(math.inf)  # itself nearest
        own = torch.where(is_choice, self.owner, 0)
        importance = torch.where(is_choice[:, None], by_choice_HCC[:, own], by_token_HTC)
        return importance.argsort(dim=-1, descending=True, stable=True)


@dataclass(frozen=True)
class Pine(RoToR):
    """PINE (Wang et al. 2024, arXiv 2407.01100), by its publication's abstract and its authors'
    code.

    The prompt, the layout and the readout are those of `rotor`. But the order in which a reader
    has the choices depends on what it attends to, in each layer and head. With unrotated queries
    and keys, so that no position counts, let

        a(t, j) = mean over the tokens u of c_j of softmax_u(q_t k_u / sqrt(h))

    where u goes over the tokens of all choices, or for a token t of a choice c_i over those of the
    other choices. The importance of c_j is a(t, j) for a token t of the cue and the texts, and the
    sum of a(t, j) over the tokens t of c_i for all tokens of c_i. The more important a choice, the
    nearer it stands; a choice has itself nearest. Queries and keys are then rotated to these
    positions, and the attention is as ever.

    Equally important choices keep the order of their token ids, in which the sequence is laid out.
    So an answer has the same bits for all orders of the choices. The publication takes segments as
    they come, and its answers are those that a model writes; here the text of each choice is read.
    """

    name: ClassVar[str] = "pine"
    layout: ClassVar[type[Reordered]] = ByImportance
