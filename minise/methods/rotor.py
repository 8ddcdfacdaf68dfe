"""RoToR: all choices see each other, and each reads them in one circular order of its own.

Here is also the attention under which a choice stands at another place for each reader, which PINE
(pine.py) shares.

Dimension legend: T tokens, H query heads, K key/value heads, h head_dim, C choices.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from minise.attention import Attend
from minise.config import Config
from minise.engines import Attended, LanguageModel
from minise.layout import Layout
from minise.methods.set_based import SetBased, SetPlan
from minise.question import Question
from minise.rope import cos_sin, rotate


@dataclass(frozen=True, eq=False)
class Reordered(Attended):
    """The question, the choices, and the cue with the texts after it. Each choice stands right
    before the cue (`positions`), unless nearer choices push it away from a reader: `shifts`.

    owner: (T,) int64, the choice of each token; -1 in the question, C in the cue and after it.
    lengths: (C,) int64, of the choices. `mask`: a token sees the question and all choices, but of
    its own choice, or in the cue and the texts, only what comes before it.
    """

    owner: Tensor
    lengths: Tensor

    def nearest(self, q_THh: Tensor, k_THh: Tensor) -> Tensor:
        """The choices in the order in which each token reads them, nearest first: (H or 1, T, C)
        int64. The order of a token of the question has no effect. Here it is circular: a choice
        reads itself, then the choices after it, and after the last the first."""
        C = len(self.lengths)
        own = torch.where(self.owner < C, self.owner, 0)  # the cue reads them from the first
        return ((own[:, None] + torch.arange(C, device=own.device)) % C)[None]

    def attend(self, config: Config) -> Attend:
        """softmax(q k^T / sqrt(h)) v, where each choice is moved away from its reader by the
        lengths of all choices that are nearer. Computed in float32 or wider."""
        at_T, C = self.positions, len(self.lengths)

        def read(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            wide = torch.promote_types(q.dtype, torch.float32)
            shared = q.shape[-2] // k.shape[-2]
            q_THh, k_TKh, v_TKh = (x[0].to(wide) for x in (q, k, v))
            v_THh = v_TKh.repeat_interleave(shared, -2)
            device = q.device
            here = replace(self, owner=self.owner.to(device), lengths=self.lengths.to(device))
            order = here.nearest(q_THh, k_TKh.repeat_interleave(shared, -2))
            # No shift for the question, the cue and what follows: the last column.
            shift_HTC = torch.nn.functional.pad(shifts(order, here.lengths), (0, 1))
            at, mask, window = at_T.to(device), self.mask.to(device), config.sliding_windows[layer]
            k_TKh = rotate(k_TKh, *cos_sin(config, at[:, None], wide))
            scores_HTT = q_THh.new_empty(q_THh.shape[1], len(at), len(at))
            for choice in range(C + 1):
                columns = here.owner % (C + 1) == choice  # -1 and C are the last
                # To move the key away is to move the query away: only the distance counts.
                at_TH = (at + shift_HTC[..., choice]).T.expand(len(at), q_THh.shape[1])
                moved = rotate(q_THh, *cos_sin(config, at_TH, wide))
                keys = k_TKh[columns].repeat_interleave(shared, -2)
                scores = torch.einsum("thd,uhd->htu", moved, keys) / math.sqrt(q.shape[-1])
                seen = mask[:, columns]
                if window is not None:
                    distance = at_TH.T[..., None] - at[columns]
                    seen = seen & (distance < window)
                scores_HTT[..., columns] = scores.masked_fill(~seen, -math.inf)
            weights_HTT = scores_HTT.softmax(dim=-1)
            return torch.einsum("htu,uhd->thd", weights_HTT, v_THh).to(q.dtype)[None]

        return read


def shifts(nearest: Tensor, lengths: Tensor) -> Tensor:
    """How far each choice is pushed away, in positions: the lengths of those that are nearer.
    `nearest` (..., C): choices, nearest first; `lengths` (C,). Returns (..., C), by choice."""
    nearer = lengths[nearest].cumsum(dim=-1) - lengths[nearest]
    return torch.empty_like(nearer).scatter_(-1, nearest, nearer)


@dataclass(frozen=True)
class RoToR(SetBased):
    """RoToR (Yoon et al. 2025, arXiv 2502.08662), by its publication and its authors' code.

    The prompt is that of `set-based`: the choices as lines without labels, in the lexical order of
    their token ids, which is the global order c_0 ... c_(C-1); the text of a choice is read after
    the cue. Unlike there, the choices see each other, and stand one after the other:

        reader          from far to near
        choice c_i      Q, c_(i-1), ..., c_0, c_(C-1), ..., c_(i+1), c_i     circular, itself last
        cue and texts   Q, c_(C-1), ..., c_1, c_0

    The last choice before a reader ends at one and the same position for all of them. So a key has
    other positions for other readers, and no mask with positions can say so: `Reordered.attend`
    rotates. The global order does not depend on the order of the choices in the question, so an
    answer has the same bits for all C! of them.

    Left out: the orders by another model's relevance and by frequency (the authors' code also has
    them), and Selective Routing, which chooses between this and standard inference for questions
    in which order matters. On MMLU the authors' code keeps "A.", "B." by the place in the question,
    and so depends on the order; it has a mode without them, as here.
    """

    name: ClassVar[str] = "rotor"
    layout: ClassVar[type[Reordered]] = Reordered

    def plan(self, lm: LanguageModel, question: Question, seed: int = 0) -> SetPlan:
        """Raises Unsuited for a model that minise's decoder does not run."""
        _ = lm.decoder.run  # another library's model has none
        plan = super().plan(lm, question, seed)
        assert plan.layout is not None  # it is SetBased's
        layout = reordered(plan.layout, len(plan.prefix), self.layout)
        # A prompt is as long as the positions go: all choices, then the cue up to its end.
        lines = layout.tokens[(layout.owner >= 0) & (layout.owner < len(layout.lengths))].tolist()
        longest = int(layout.lengths.max())
        prompts = [replace(prompt, ids=lines + prompt.ids[longest:]) for prompt in plan.prompts]
        return replace(plan, layout=layout, prompts=prompts)


def reordered(layout: Layout, prefix: int, kind: type[Reordered] = Reordered) -> Reordered:
    """The layout of `set-based`, in which choices stand side by side behind a question of `prefix`
    tokens, as one in which they see each other and stand one after the other."""
    side_by_side, mask = layout.positions, layout.mask
    starts = (side_by_side == prefix).nonzero().flatten()
    C = len(starts)
    # Only the cue and the texts after it see the first choice and the last.
    last = mask[:, starts[0]] & mask[:, starts[-1]]
    owner = (side_by_side == prefix).cumsum(dim=0) - 1
    owner[last] = C
    lengths = torch.bincount(owner[owner >= 0], minlength=C)[:C]
    longest, end = int(lengths.max()), prefix + int(lengths.sum())
    positions = side_by_side.clone()
    positions[last] += end - prefix - longest
    is_choice = (owner >= 0) & ~last
    positions[is_choice] += (end - prefix - lengths)[owner[is_choice]]
    others = is_choice[:, None] & is_choice & (owner[:, None] != owner)
    return kind(layout.tokens, positions, mask | others, layout.ends, owner, lengths)
