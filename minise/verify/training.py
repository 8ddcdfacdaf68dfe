"""Training on packed branches: their loss in one pass, and the check that its gradients are right.

A token that several branches share is run once, but it counts once for each branch that holds it,
times that branch's weight. A masked score is -inf before the softmax: its derivative is 0, not NaN.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from minise.checks import check_mask_fits, check_prompts
from minise.engines import LanguageModel, on
from minise.errors import InputError
from minise.layout import Tree, causal_mask, pack
from minise.method import Plan
from minise.verify.comparison import some

Ids = Sequence[Sequence[int]]
IGNORED = -100  # the target of a token without a loss, as in torch's cross_entropy
TINY = torch.finfo(torch.float64).tiny
MOST = 1e-12  # the largest difference of a gradient, as a part of the tensor's largest entry


def packed_loss(
    lm: LanguageModel,
    layout: Tree,
    targets: Ids | None = None,
    weights: Sequence[float] | None = None,
) -> Tensor:
    """The weighted sum over branches of the cross-entropies of their tokens, in nats: a scalar in
    the weights' dtype, which can be differentiated.

    layout: from `pack`. targets: for each branch, in the order that `pack` was given, the id that
    each token of its whole prompt (prefix too) is to predict; -100 where there is no loss. By
    default the next token of the prompt, and none at its last. weights: one for each branch, by
    default 1. The sum is not divided by anything: divide the weights.

    `load` freezes the parameters: call `lm.decoder.requires_grad_()` first. Raises InputError for
    targets or weights that do not fit the layout, and for scores that would not fit in memory.
    """
    paths = layout.paths()
    if targets is None:
        targets = [[*layout.tokens[path[1:]].tolist(), IGNORED] for path in paths]
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
    if all(token == IGNORED for ids in targets for token in ids):
        raise InputError(f"every target is {IGNORED}, so there is no loss; give at least one")
    score = lm.config.num_attention_heads * max(4, lm.decoder.dtype.itemsize)
    check_mask_fits(len(layout.tokens), score)
    states = lm.decoder(*on(lm, layout.tokens, layout.positions), layout.mask)
    each = zip(paths, targets, weights, strict=True)
    terms = [(*one, weight) for path, ids, weight in each for one in zip(path, ids, strict=True)]
    rows, tokens, factors = zip(*(term for term in terms if term[1] != IGNORED), strict=True)
    # One row of logits for each token that has a loss, however many branches hold it.
    at, place = torch.tensor(rows).unique(return_inverse=True)
    logs = lm.decoder.logits(states[at.to(states.device)]).log_softmax(dim=-1)
    return -(logs[place, list(tokens)] * logs.new_tensor(factors)).sum()


@torch.inference_mode(False)
@torch.enable_grad()
def check_gradients(lm: LanguageModel, plan: Plan) -> dict[str, Any]:
    """Compare the loss of a plan's prompts in one pass, packed and as a tree, and its derivative by
    every parameter, with the sum over prompts that run one by one: at most 8, spread over all.
    Every token is to predict the next one of its prompt, and the last one the prompt's first label.
    Each branch has a weight of its own. Raises InputError for a model that is not in float64, and
    for prompts that do not fit.

    largest: for "dense" and "tree" the largest difference of the loss, or of an entry of its
    gradient by any of so many `parameters`, as a part of the largest entry of that tensor. passed:
    whether all are at most MOST. A NaN is not."""
    if lm.decoder.dtype != torch.float64:
        raise InputError(f"gradients are compared in float64, not {lm.decoder.dtype}; load it so")
    plan = some(plan)
    firsts = [(prompt.label_ids or [0])[0] for prompt in plan.prompts]
    check_prompts(lm, plan.prefix, plan.branches, firsts)
    wholes = [plan.prefix + branch for branch in plan.branches]
    targets = [[*whole[1:], first] for whole, first in zip(wholes, firsts, strict=True)]
    weights = [1 / (1 + branch) for branch in range(len(wholes))]
    lm = replace(lm, decoder=copy.deepcopy(lm.decoder).requires_grad_())
    parameters = list(lm.decoder.parameters())

    def differentiated(loss: Tensor) -> list[Tensor]:
        return [loss.detach(), *torch.autograd.grad(loss, parameters)]

    def alone(whole: list[int], ids: list[int]) -> Tensor:
        """The loss of one prompt, by its definition."""
        T = len(whole)
        tokens, positions, right = on(lm, torch.tensor(whole), torch.arange(T), torch.tensor(ids))
        logits = lm.decoder.logits(lm.decoder(tokens, positions, causal_mask(T)))
        return F.cross_entropy(logits, right, reduction="sum")

    losses = [w * alone(*one) for w, *one in zip(weights, wholes, targets, strict=True)]
    expected, apart = differentiated(torch.stack(losses).sum()), {}
    for engine in ("dense", "tree"):
        layout = pack(plan.prefix, plan.branches, tree=engine == "tree")
        found = differentiated(packed_loss(lm, layout, targets, weights))
        sizes = (one.abs().max().clamp(min=TINY) for one in expected)
        pairs = zip(found, expected, sizes, strict=True)
        # A NaN stays in the maximum.
        most = torch.stack([(a / size - b / size).abs().max() for a, b, size in pairs]).max()
        apart[engine] = float(most)
    about = {"tokens": plan.tokens("separate"), "groups": len(wholes)}
    about |= {"parameters": len(parameters)}
    passed = all(value <= MOST for value in apart.values())
    return {**about, "largest": apart, "tolerance": MOST, "passed": passed}


def as_text(found: dict[str, Any]) -> str:
    """A line for each engine, and the verdict."""
    size = f"{found['tokens']:,} tokens of {found['groups']} group prompts"
    lines = [f"the loss of {size} in one pass, its derivative by {found['parameters']} tensors:"]
    for engine, most in found["largest"].items():
        lines.append(f"  {engine:6} off by at most {most:.1e} of a tensor's largest entry")
    failed = f"FAILED: beyond {MOST:.0e}, a packed pass does not train as its prompts do"
    return "\n".join([*lines, f"passed: all within {MOST:.0e}" if found["passed"] else failed])
