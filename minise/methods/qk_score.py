"""QK-score: the choice to which one attention head points, the head chosen on other questions.

Dimension legend: T tokens, L layers, H query heads, h head_dim, K choices.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from minise.attention import by_mask
from minise.engines import LanguageModel
from minise.errors import InputError
from minise.layout import causal_mask
from minise.method import Answer, Plan, Standard
from minise.methods.calibration import Array, Labels, OutOfFold
from minise.methods.sample import Sample
from minise.prompt import LABELS, Template, shared_length
from minise.question import Question
from minise.rope import cos_sin, rotate


@dataclass(frozen=True)
class QKHeads(Standard):
    """Standard inference, whose samples also keep how each attention head scores each choice: the
    input of `qk-score`. A second run of the prompt reads it; it is not counted in the tokens."""

    name: ClassVar[str] = "qk-heads"

    def plan(self, lm: LanguageModel, question: Question, seed: int = 0) -> Plan:
        """Raises Unsuited for a model that minise's decoder does not run."""
        _ = lm.decoder.run  # another library's model has none
        return super().plan(lm, question, seed)

    def notes(self, lm: LanguageModel, plan: Plan, answer: Answer, seed: int) -> dict[str, Any]:
        """For the sample: `qk`, a list (L * H * 2, K) of floats: layer by layer, head by head, at
        the end of the line and at the end of the text."""
        ids = [*plan.prefix, *plan.prompts[0].ids]
        rows = end_rows(lm, self.standard_template(lm), plan.question, ids)
        scores = head_scores(lm, ids, [row for kind in rows for row in kind])
        return {"qk": scores.unflatten(-1, (len(rows), -1)).flatten(0, 2).tolist()}


def end_rows(
    lm: LanguageModel, template: Template, question: Question, ids: Sequence[int]
) -> tuple[list[int], list[int]]:
    """Rows of the standard prompt `ids`: for each choice the last token of its line, and for each
    the last token of its text. Where a tokenizer merges this token and what follows: the token
    before."""
    text = template.prefix(question.text)
    texts = []
    for label, choice in zip(LABELS, question.choices, strict=False):
        text += template.choice.format(label=label, choice=choice)
        texts.append(text)
    encoded = lm.tokenizer.encode([*texts, *(one.rstrip() for one in texts)])
    rows = [shared_length([one, ids]) - 1 for one in encoded]
    return rows[: len(texts)], rows[len(texts) :]


@torch.inference_mode()
def head_scores(lm: LanguageModel, ids: Sequence[int], rows: Sequence[int]) -> Tensor:
    """q . k / sqrt(h) of the last token's query and the keys of `rows` (R,), both without rotation:
    (L, H, R) float64 on the CPU."""
    device, T = lm.decoder.device, len(ids)
    positions = torch.arange(T, device=device)[None]
    windows = lm.config.sliding_windows
    plain = by_mask(causal_mask(T).to(device)[None], positions, windows)
    layers = []

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        cos, sin = cos_sin(lm.config, positions[0, :, None], q.dtype)
        last = rotate(q[0, -1:], cos[-1:], -sin[-1:])[0]  # rotated back
        keys = rotate(k[0, list(rows)], cos[list(rows)], -sin[list(rows)])
        keys = keys.repeat_interleave(q.shape[-2] // k.shape[-2], -2)
        layers.append(torch.einsum("hd,khd->hk", last, keys) / math.sqrt(q.shape[-1]))
        return plain(layer, q, k, v)

    lm.decoder.run(torch.tensor([list(ids)], device=device), positions, attend)
    return torch.stack(layers).cpu().double()


@dataclass(frozen=True)
class QKScore(OutOfFold):
    """QK-score (Tulchinskii et al. 2024, arXiv 2410.02343).

        S(l, h, i) = q . k / sqrt(h),    q of the last token of the standard prompt, k of a token of
                                         choice i, in head h of layer l

    The token is the one that ends the line, as in the publication, or the last of the choice's
    text. Head and token are those that answer most questions of the other folds (so right answers
    are used, but never the question's own, nor those about its fact); of equals those whose softmax
    of S has the larger mean log-probability of the right answers. The answer is the choice with the
    largest S there.

    Read of the publication: its abstract, and that it scores the tokens that end the lines. From
    memory: that it chooses heads on other questions, and takes queries and keys without rotation,
    so that the distance of a choice does not count. Its answer is a choice alone. Here it
    gets a distribution: the softmax of S over the choices, at the attention's own scale. No
    temperature is fitted, so `nll` says little of it and `nll_matched` more.
    """

    name: ClassVar[str] = "qk-score"
    needs = ("qk-heads",)

    def numbers(self, sample: Sample) -> list[list[float]]:
        """(L * H * 2, K). Raises InputError for a sample without the scores of heads."""
        scores = (sample.notes or {}).get("qk")
        if not scores or not np.isfinite(scores).all():
            raise InputError(f"question {sample.id}: no scores of heads; run qk-heads again")
        return scores

    def _predict(self, known: Array, answers: Labels, new: Array) -> Array:
        head = best_head(known.reshape(len(known), -1, known.shape[-1]), answers)
        chosen = torch.tensor(new.reshape(len(new), -1, new.shape[-1])[:, head])
        return chosen.softmax(dim=-1).numpy()


def best_head(scores: Array, answers: Labels) -> int:
    """The number of a head, of scores (n, heads, K) with right answers (n,): the one whose largest
    score is most often the right choice's; of equals the one with the larger mean log-probability,
    then the first."""
    log_p = torch.tensor(scores).log_softmax(dim=-1).numpy()
    rows = np.arange(len(answers))
    right = (scores.argmax(axis=-1) == answers[:, None]).sum(axis=0)
    likelihood = log_p[rows, :, answers].mean(axis=0)
    return max(range(len(right)), key=lambda head: (right[head], likelihood[head]))
