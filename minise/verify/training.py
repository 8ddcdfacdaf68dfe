"""Training on packed branches: their loss in one pass, and the check that its gradients are right.

A token that several branches share is run once, but it counts once for each branch that holds it,
times that branch's weight. A masked score is -inf before the softmax: its derivative is 0, not NaN.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from minise.errors import InputError
from minise.layout import Layout, causal_mask, pack
from minise.lm import LocalModel
from minise.prompts import Prompts, check_prompts
from minise.verify.comparison import PACKED, TINY, sample
from minise.verify.recording import own_decoder

IGNORED = -100  # the target of a token without a loss, as in torch's cross_entropy
TOLERANCE = 1e-12  # of a gradient's difference, as a part of the tensor's largest entry


def packed_loss(
    lm: LocalModel,
    layout: Layout,
    targets: Sequence[Sequence[int]] | None = None,
    weights: Sequence[float] | None = None,
) -> Tensor:
    """The weighted sum over branches of the cross-entropies of their tokens, in nats: a scalar in
    the weights' dtype, which can be differentiated.

    layout: from `pack`. targets: for each branch, in the order that `pack` was given, the id that
    each token of its whole prompt (prefix too) is to predict; -100 where there is no loss. By
    default the next token of the prompt, and none at its last. weights: one for each branch, by
    default 1. The sum is not divided by anything: divide the weights.

    `load` freezes the parameters: call `lm.decoder.requires_grad_()` first. Raises InputError for
    targets or weights that do not fit the layout, and for a mask that would not fit in memory.
    """
    paths = layout.paths()
    if targets is None:
        targets = []
        for path in paths:
            following = layout.tokens[path[1:]].tolist()
            targets.append([*following, IGNORED])
    if weights is None:
        weights = [1.0] * len(paths)
    if not len(targets) == len(weights) == len(paths):
        given = f"{len(targets)} targets and {len(weights)} weights for {len(paths)} branches"
        raise InputError(f"{given}; give one of each for each branch")
    known = {IGNORED, *range(lm.config.vocab_size)}
    for branch, (path, ids) in enumerate(zip(paths, targets, strict=True)):
        if len(ids) != len(path) or not known.issuperset(ids):
            wrong = f"the targets of branch {branch} are not {len(path)} token ids of {lm.name}"
            raise InputError(f"{wrong}; give one for each token, prefix too, {IGNORED} for none")

    # One term for each token that has a loss, in each branch that holds it.
    rows: list[int] = []
    wanted: list[int] = []
    factors: list[float] = []
    for path, ids, weight in zip(paths, targets, weights, strict=True):
        for row, token in zip(path, ids, strict=True):
            if token != IGNORED:
                rows.append(row)
                wanted.append(token)
                factors.append(weight)
    if not rows:
        raise InputError(f"every target is {IGNORED}, so there is no loss; give at least one")

    # One row of logits for each such token, however many branches hold it.
    read_R, place = torch.tensor(rows).unique(return_inverse=True)
    hidden_RD = lm.decoder(layout.tokens, layout.positions, layout.mask, read_R)
    logs_RV = lm.decoder.logits(hidden_RD).log_softmax(dim=-1)
    terms = logs_RV[place, wanted] * logs_RV.new_tensor(factors)
    return -terms.sum()


@torch.inference_mode(False)
@torch.enable_grad()
def check_gradients(lm: LocalModel, prompts: Prompts) -> dict[str, float]:
    """Compare the loss of prompts in one pass, packed and as a tree, and its derivative by every
    parameter, with the sum over prompts that run one by one: at most 8, spread over all. Every
    token is to predict the next one of its prompt, and the last one the prompt's first label. Each
    branch has a weight of its own.

    Returns for each packed engine the largest difference of the loss, or of an entry of its
    gradient by any parameter, as a part of the largest entry of that tensor. Raises InputError for
    a model that is not in float64, and for prompts that do not fit.
    """
    if lm.decoder.dtype != torch.float64:
        raise InputError(f"gradients are compared in float64, not {lm.decoder.dtype}; load it so")
    prompts = sample(prompts)
    check_prompts(lm, prompts)
    wholes = [prompts.prefix + branch for branch in prompts.branches]
    targets = []
    weights = []
    for branch, whole in enumerate(wholes):
        first_label = prompts.label_ids[branch][0]
        targets.append([*whole[1:], first_label])
        weights.append(1 / (1 + branch))
    decoder = copy.deepcopy(own_decoder(lm)).requires_grad_()
    parameters = list(decoder.parameters())
    lm = replace(lm, decoder=decoder)

    def differentiated(loss: Tensor) -> list[Tensor]:
        return [loss.detach(), *torch.autograd.grad(loss, parameters)]

    losses = []
    for whole, ids, weight in zip(wholes, targets, weights, strict=True):
        losses.append(weight * loss_alone(lm, whole, ids))
    expected = differentiated(torch.stack(losses).sum())

    largest = {}
    for engine in PACKED:
        layout = pack(prompts.prefix, prompts.branches, tree=engine == "tree")
        found = differentiated(packed_loss(lm, layout, targets, weights))
        differences = []
        for a, b in zip(found, expected, strict=True):
            size = b.abs().max().clamp(min=TINY)
            apart = a / size - b / size
            differences.append(apart.abs().max())
        largest[engine] = float(torch.stack(differences).max())  # a NaN stays in the maximum
    return largest


def loss_alone(lm: LocalModel, prompt: list[int], targets: list[int]) -> Tensor:
    """The loss of one prompt, by its definition."""
    T = len(prompt)
    hidden_TD = lm.decoder(torch.tensor(prompt), torch.arange(T), causal_mask(T))
    logits_TV = lm.decoder.logits(hidden_TD)
    wanted = torch.tensor(targets, device=logits_TV.device)
    return F.cross_entropy(logits_TV, wanted, reduction="sum")


def is_same(largest: dict[str, float]) -> bool:
    """Whether all differences are within the tolerance. A NaN is not."""
    return all(difference <= TOLERANCE for difference in largest.values())


def as_text(largest: dict[str, float]) -> str:
    """A line for each engine, and the verdict."""
    lines = ["the loss of one pass and its derivatives, against separate prompts:"]
    for engine, difference in largest.items():
        lines.append(f"  {engine:6} off by at most {difference:.1e} of a tensor's largest entry")
    if is_same(largest):
        lines.append(f"passed: all within {TOLERANCE:.0e}")
    else:
        what = "a packed pass does not train as its prompts do"
        lines.append(f"FAILED: beyond {TOLERANCE:.0e}, {what}")
    return "\n".join(lines)
