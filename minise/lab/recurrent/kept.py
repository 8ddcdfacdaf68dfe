"""Tokens that follow others, where layers have states: those of chosen tokens are kept.

A cache of keys and values holds all tokens, because each may be read. A state holds what its token
and all its ancestors wrote, so only the tokens from which others will go on need one: with it the
last inputs of the short convolution, and which tokens it has seen. They run by the definition,
depth by depth (steps.py).

Dimension legend: P tokens of a cache, T that follow; S tokens whose states are kept; H heads; k, v
sizes of a key and a value; C channels of the convolution, n its taps. There is one sequence.
Next to read: minise/lab/writing/cache.py.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from minise.errors import InputError
from minise.lab.recurrent.convolution import convolve
from minise.lab.recurrent.paths import Paths, paths_of
from minise.lab.recurrent.steps import each_depth


@dataclass(frozen=True, eq=False)
class Kept:
    """Of S tokens of a cache. sees_SP: bool, which of the tokens each has seen, itself too. Of each
    recurrent layer: states (S, H, k, v), and the last inputs (S, n - 1, C), oldest first."""

    sees_SP: Tensor
    states: list[Tensor]
    inputs: list[Tensor]

    def only(self, rows: Tensor) -> Kept:
        """What is left where the cache has only these rows (R,) int64. A token that has seen others
        loses its state, which cannot forget them."""
        lost = self.sees_SP.sum(dim=1) != self.sees_SP[:, rows].sum(dim=1)
        stays = (~lost).nonzero().flatten()
        states = [one[stays] for one in self.states]
        return Kept(self.sees_SP[stays][:, rows], states, [one[stays] for one in self.inputs])


class GoingOn:
    """How the recurrent layers run T tokens that follow others, layer by layer. kept: of the tokens
    `rows`, complete when every layer was run.

    mask_TU: (T, P + T) bool, columns as in `extend`. Raises InputError for a mask that is no tree,
    and for a token that goes on from one whose state was not kept.
    """

    def __init__(self, before: Kept | None, mask_TU: Tensor, rows: Tensor) -> None:
        T = len(mask_TU)
        P = mask_TU.shape[1] - T
        self.before = before
        self.rows = rows
        self.paths: Paths = paths_of(mask_TU[:, P:])
        first = self.paths.mask.byte().argmax(dim=1)  # of each token's path among the T
        earlier_TP = mask_TU[:, :P]
        wrong = (earlier_TP != earlier_TP[first]).any(dim=1).nonzero().flatten()
        if len(wrong):
            raise InputError(f"row {int(wrong[0])} of the mask does not see what its parent sees")
        nothing_1P = torch.zeros(1, P, dtype=torch.bool, device=mask_TU.device)
        sees_SP = nothing_1P if before is None else torch.cat([before.sees_SP, nothing_1P])
        # From which of these each path goes on; the last is the state before all tokens.
        same_TS = (earlier_TP[:, None] == sees_SP).all(dim=-1)
        lost = (~same_TS.any(dim=1)).nonzero().flatten()
        if len(lost):
            what = f"row {int(lost[0])} of the mask goes on from a token whose state was not kept"
            raise InputError(f"{what}; name it in rows= when it is run")
        self.begins_T = same_TS.byte().argmax(dim=1)
        self.kept = Kept(mask_TU[rows], [], [])

    def taps(self, count: int) -> Tensor:
        """As Paths.taps, into the T inputs, then the kept ones, n - 1 of each token and zeros where
        there is none."""
        T = len(self.begins_T)
        own_TN = self.paths.taps(count)
        back_TN = torch.arange(count, device=own_TN.device) - self.paths.depths[:, None] - 1
        earlier_TN = T + self.begins_T[:, None] * (count - 1) + (count - 2 - back_TN)
        return torch.where(own_TN < T, own_TN, earlier_TN)

    def convolve(self, x_TC: Tensor, weight_CN: Tensor) -> Tensor:
        taps = weight_CN.shape[1]
        layer = len(self.kept.inputs)
        nothing_1NC = x_TC.new_zeros(1, taps - 1, x_TC.shape[1])
        inputs_SNC = nothing_1NC
        if self.before is not None:
            inputs_SNC = torch.cat([self.before.inputs[layer], nothing_1NC])
        all_C = torch.cat([x_TC, inputs_SNC.flatten(0, 1)])
        self.kept.inputs.append(all_C[self.taps(taps)[self.rows, : taps - 1].flip(-1)])
        return convolve(all_C, weight_CN, None, self)

    def rule(
        self, q_THk: Tensor, k_THk: Tensor, v_THv: Tensor, g_THn: Tensor, beta_TH: Tensor
    ) -> Tensor:
        layer = len(self.kept.states)
        nothing_1Hkv = v_THv.new_zeros(1, v_THv.shape[1], k_THk.shape[-1], v_THv.shape[-1])
        first_SHkv = nothing_1Hkv
        if self.before is not None:
            first_SHkv = torch.cat([self.before.states[layer], nothing_1Hkv])
        out_THv = torch.zeros_like(v_THv)
        kept_RHkv = nothing_1Hkv.repeat(len(self.rows), 1, 1, 1)
        given = (q_THk, k_THk, v_THv, g_THn, beta_TH, self.paths, first_SHkv, self.begins_T)
        for depth in each_depth(*given):
            out_THv[depth.rows] = depth.out_RHv
            number_R, of_depth = (self.rows[:, None] == depth.rows).nonzero(as_tuple=True)
            kept_RHkv[number_R] = depth.states_RHkv[of_depth]
        self.kept.states.append(kept_RHkv)
        return out_THv
