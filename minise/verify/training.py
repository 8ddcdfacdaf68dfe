"""Training on packed branches: their loss in one pass, and the check that its gradients are right.

A token that several branches share is run once, but it counts once for each branch that holds it,
times the weight of that branch: so the loss, and its derivative by every parameter, are those of
the branches run one by one. The pass is the definition (`Decoder.forward`), which torch can
differentiate. A masked score is -inf before the softmax, so its derivative is exactly 0; it is
never NaN, because every token attends at least to itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from minise.engines import LanguageModel, check_fit, check_scores_fit
from minise.errors import InputError
from minise.layout import Tree, causal_mask, pack
from minise.method import Plan

IGNORED = -100  # the target of a token without a loss, as in torch's cross_entropy
MOST = 1e-12  # the largest difference of a gradient, as a part of the tensor's largest entry
CHECKED = 8  # branches, at most, of a plan: the scores of all layers are kept for the derivative


def packed_loss(
    lm: LanguageModel,
    layout: Tree,
    targets: Sequence[Sequence[int]] | None = None,
    weights: Sequence[float] | None = None,
) -> Tensor:
    """The weighted sum over branches of the cross-entropies of their tokens, in nats: a scalar in
    the weights' dtype, which can be differentiated.

    layout: from `pack`, with or without tree=True. targets: for each branch, in the order that
    `pack` was given, the id that each token of its whole prompt (prefix too) is to predict; -100
    where there is no loss. By default the next token of the prompt, and none at its last. weights:
    one for each branch, by default 1. The sum is not divided by anything: divide the weights.

    `load` freezes the parameters: call `lm.decoder.requires_grad_()` first. Raises InputError for
    targets or weights that do not fit the layout, and for scores that would not fit in memory.
    """
    paths = layout.paths()
    if targets is None:
        targets = [[*layout.tokens[path[1:]].tolist(), IGNORED] for path in paths]
    if weights is None:
        weights = [1.0] * len(paths)
    _check(lm, paths, targets, weights)
    rows, ids, factors = zip(*_terms(paths, targets, weights), strict=True)
    states = _states(lm, layout)
    # One row of logits for each token that has a loss, however many branches hold it.
    at, place = torch.tensor(rows).unique(return_inverse=True)
    logs = lm.decoder.logits(states[at.to(states.device)]).log_softmax(dim=-1)
    return -(logs[place, list(ids)] * logs.new_tensor(factors)).sum()


def _states(lm: LanguageModel, layout: Tree) -> Tensor:
    """Hidden states (T, D) of a layout, differentiable."""
    check_scores_fit(lm, len(layout.tokens))
    device = lm.decoder.device
    states: Tensor = lm.decoder(layout.tokens.to(device), layout.positions.to(device), layout.mask)
    return states


def _terms(
    paths: Sequence[Sequence[int]], targets: Sequence[Sequence[int]], weights: Sequence[float]
) -> list[tuple[int, int, float]]:
    """The terms of the loss: a row of the layout, the id that it is to predict, and how much this
    counts. Branches that share a token and its target add their weights."""
    sums: dict[tuple[int, int], float] = {}
    for path, ids, weight in zip(paths, targets, weights, strict=True):
        for row, token in zip(path, ids, strict=True):
            if token != IGNORED:
                sums[row, token] = sums.get((row, token), 0.0) + weight
    return [(row, token, weight) for (row, token), weight in sums.items()]


def _check(
    lm: LanguageModel,
    paths: Sequence[Sequence[int]],
    targets: Sequence[Sequence[int]],
    weights: Sequence[float],
) -> None:
    """Raise InputError for targets or weights that do not fit."""
    for name, given in (("targets", targets), ("weights", weights)):
        if len(given) != len(paths):
            raise InputError(f"{len(given)} {name} for {len(paths)} branches; give one for each")
    for branch, (path, ids) in enumerate(zip(paths, targets, strict=True)):
        if len(ids) != len(path):
            raise InputError(
                f"branch {branch} has {len(path)} tokens with its prefix, and {len(ids)} targets; "
                f"give one for each token, {IGNORED} for none"
            )
        for token in ids:
            if token != IGNORED and not 0 <= token < lm.config.vocab_size:
                raise InputError(
                    f"target {token} of branch {branch} is no token of {lm.name} "
                    f"(vocab_size {lm.config.vocab_size}); {IGNORED} is for no loss"
                )
    if all(token == IGNORED for ids in targets for token in ids):
        raise InputError(f"every target is {IGNORED}, so there is no loss; give at least one")


@dataclass(frozen=True)
class Gradients:
    """The result of `check_gradients`. tokens: of all prompts that were run. parameters: how many
    tensors were compared. largest: for "dense" and "tree", the largest difference of an entry of a
    gradient from the sum over separate prompts, as a part of the largest entry of that tensor's;
    worst: in which tensor. losses: the difference of the loss, as a part of it."""

    tokens: int
    branches: int
    parameters: int
    largest: dict[str, float]
    worst: dict[str, str]
    losses: dict[str, float]

    @property
    def passed(self) -> bool:
        """Whether all are at most 1e-12. A NaN is not."""
        return all(value <= MOST for value in (*self.largest.values(), *self.losses.values()))


@torch.inference_mode(False)
@torch.enable_grad()
def check_gradients(lm: LanguageModel, plan: Plan) -> Gradients:
    """Compare the loss of a plan's prompts in one pass, packed and as a tree, and its derivative by
    every parameter, with the sum over prompts that run one by one.

    Every token is to predict the next one of its prompt, and the last one the prompt's first label.
    Each branch has a weight of its own. At most 8 prompts are taken, spread over all. The model
    must be in float64, and its parameters must be numbers that torch can differentiate by (not in
    4 bits). Raises InputError otherwise, and for prompts that do not fit.
    """
    if lm.decoder.dtype != torch.float64:
        raise InputError(f"gradients are compared in float64, not {lm.decoder.dtype}; load it so")
    labels = [i for prompt in plan.prompts for i in prompt.label_ids]
    check_fit(lm.name, lm.config, plan.prefix, plan.branches, labels)
    prompts = plan.prompts[:: -(-len(plan.prompts) // CHECKED)]
    branches = [prompt.ids for prompt in prompts]
    wholes = [plan.prefix + branch for branch in branches]
    targets = [
        [*whole[1:], prompt.label_ids[0]] for whole, prompt in zip(wholes, prompts, strict=True)
    ]
    weights = [1 / (1 + branch) for branch in range(len(prompts))]
    parameters = dict(lm.decoder.named_parameters())
    frozen = {name: p.requires_grad for name, p in parameters.items()}
    try:
        lm.decoder.requires_grad_()
        loss, expected = _one_by_one(lm, wholes, targets, weights)
        found = {}
        for name in ("dense", "tree"):
            layout = pack(plan.prefix, branches, tree=name == "tree")
            packed = packed_loss(lm, layout, targets, weights)
            found[name] = packed.detach(), _gradients(lm, packed)
    finally:
        for name, p in parameters.items():
            p.requires_grad_(frozen[name])
    apart = {
        engine: {name: _apart(one[name], expected[name]) for name in parameters}
        for engine, (_, one) in found.items()
    }
    worst = {engine: max(one, key=one.__getitem__) for engine, one in apart.items()}
    return Gradients(
        sum(map(len, wholes)),
        len(wholes),
        len(parameters),
        {engine: apart[engine][name] for engine, name in worst.items()},
        worst,
        {engine: _apart(packed, loss) for engine, (packed, _) in found.items()},
    )


def _one_by_one(
    lm: LanguageModel,
    wholes: Sequence[list[int]],
    targets: Sequence[list[int]],
    weights: Sequence[float],
) -> tuple[Tensor, dict[str, Tensor]]:
    """The weighted sum of the prompts' losses and its derivatives, by its definition."""
    decoder, device = lm.decoder, lm.decoder.device
    total = torch.zeros((), dtype=decoder.dtype, device=device)
    sums = {name: torch.zeros_like(p) for name, p in decoder.named_parameters()}
    for whole, ids, weight in zip(wholes, targets, weights, strict=True):
        T = len(whole)
        tokens, positions = torch.tensor(whole), torch.arange(T)
        states = decoder(tokens.to(device), positions.to(device), causal_mask(T))
        logits, wanted = decoder.logits(states), torch.tensor(ids, device=device)
        loss = weight * F.cross_entropy(logits, wanted, reduction="sum")
        for name, gradient in _gradients(lm, loss).items():
            sums[name] += gradient
        total += loss.detach()
    return total, sums


def _gradients(lm: LanguageModel, loss: Tensor) -> dict[str, Tensor]:
    parameters = dict(lm.decoder.named_parameters())
    return dict(zip(parameters, torch.autograd.grad(loss, list(parameters.values())), strict=True))


def _apart(one: Tensor, other: Tensor) -> float:
    """The largest difference of an entry as a part of the largest entry; infinite for a NaN."""
    size = max(float(other.abs().max()), torch.finfo(torch.float64).tiny)
    largest = float((one - other).abs().max()) / size
    return largest if largest == largest else float("inf")
