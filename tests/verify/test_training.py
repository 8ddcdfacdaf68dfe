"""The loss of packed branches and its gradients, and that faults of such training are found."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import minise.attention as definition
import minise.verify.training as training
from minise import Decoder, InputError, LanguageModel, pack, packed_loss
from minise.layout import Tree, causal_mask
from minise.verify.training import check_gradients
from tests.support.tiny import ALL_FAMILIES, load_tiny
from tests.verify.cases import plan_of

# Four levels below the prefix, branches of unequal length, one that begins another, and one twice.
# Longer than the windows of the tiny models.
PREFIX = [30, 31, 32]
BRANCHES = [
    [*range(60, 75), 80],
    [*range(60, 70), 81, 82, *range(100, 108)],
    [*range(60, 70), 81, 82, 83, *range(110, 120)],
    [*range(60, 70), 81, 82, 83, 84, *range(120, 135)],
    [*range(60, 70), 81],
    [90, 91],
    [90, 91],
]
DEEP = plan_of(PREFIX, BRANCHES, [3, 1, 2])
Patch = pytest.MonkeyPatch


@pytest.fixture(scope="module", params=ALL_FAMILIES)
def each(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> LanguageModel:
    return load_tiny(tmp_path_factory.mktemp(request.param), ALL_FAMILIES[request.param])


@pytest.fixture(scope="module")
def mistral(tmp_path_factory: pytest.TempPathFactory) -> LanguageModel:
    raw = {**ALL_FAMILIES["mistral"], "sliding_window": 13, "num_hidden_layers": 2}
    return load_tiny(tmp_path_factory.mktemp("mistral"), raw)


def test_gradients_of_packed_branches_are_the_sums_over_separate_prompts(
    each: LanguageModel,
) -> None:
    found = check_gradients(each, DEEP)
    assert found.passed, found
    assert found.groups == 7
    assert set(found.largest) == {"dense", "tree"}
    assert found.parameters == len(list(each.decoder.parameters()))
    assert max(found.largest.values()) <= 1e-12
    assert not any(p.requires_grad for p in each.decoder.parameters())


def test_a_shared_token_counts_once_for_each_branch_times_its_weight(
    mistral: LanguageModel,
) -> None:
    """The loss of the token 31, which all branches predict, and of the last tokens of two."""
    weights = [1.0, 0.5, 0.25, 2.0, 3.0, 0.0, 4.0]
    targets = [[-100] * (3 + len(branch)) for branch in BRANCHES]
    for ids in targets:
        ids[0] = 31
    targets[0][-1], targets[3][-1] = 7, 8
    expected = torch.zeros((), dtype=torch.float64)
    for number, count in ((0, sum(weights)), (0, 1.0), (3, 2.0)):
        first = count == sum(weights)
        whole = torch.tensor(PREFIX + BRANCHES[number])
        logits = mistral.decoder.logits(
            mistral.decoder(whole, torch.arange(len(whole)), causal_mask(len(whole)))
        ).log_softmax(-1)
        token = 31 if first else targets[number][-1]
        expected -= count * logits[0 if first else -1, token]
    for tree in (False, True):
        loss = packed_loss(mistral, pack(PREFIX, BRANCHES, tree=tree), targets, weights)
        assert torch.allclose(loss, expected, rtol=1e-13)


def test_without_targets_each_token_predicts_the_next_of_its_own_branch(
    mistral: LanguageModel,
) -> None:
    layout = pack(PREFIX, BRANCHES, tree=True)
    targets = [[*PREFIX[1:], *branch, -100] for branch in BRANCHES]
    given = packed_loss(mistral, layout, targets, [1.0] * 7)
    assert torch.equal(packed_loss(mistral, layout), given)


def test_masked_scores_give_no_nan_and_no_derivative(mistral: LanguageModel) -> None:
    """Of the second branch's own tokens, by a loss of the first alone."""
    layout = pack([30], [[60, 61, 62], [70, 71, 72]])
    inputs: list[Tensor] = []

    def watch(_: Any, __: Any, output: Tensor) -> Tensor:
        inputs.append(output.detach().requires_grad_())
        return inputs[-1]

    hook = mistral.decoder.model.embed_tokens.register_forward_hook(watch)
    try:
        loss = packed_loss(mistral, layout, weights=[1.0, 0.0])
    finally:
        hook.remove()
    (slope,) = torch.autograd.grad(loss, inputs)
    assert slope.isfinite().all()
    assert slope[0, :3].abs().amax(dim=-1).min() > 0
    assert slope[0, 4:].abs().max() == 0.0  # the first branch is rows 1 to 3


def test_what_does_not_fit_is_refused(mistral: LanguageModel, monkeypatch: Patch) -> None:
    layout = pack([30], [[60, 61], [70]])
    good = [[1, 2, 3], [1, 2]]
    for targets, weights, part in (
        (good[:1], None, "1 targets for 2 branches"),
        (good, [1.0], "1 weights for 2 branches"),
        ([[1, 2], [1, 2]], None, "the targets of branch 0 are not 3 token ids"),
        ([[1, 2, 3], [1, 288]], None, "the targets of branch 1"),
        ([[1, 2, 3], [1, -1]], None, "the targets of branch 1"),
        ([[-100] * 3, [-100] * 2], None, "every target is -100"),
    ):
        with pytest.raises(InputError, match=part):
            packed_loss(mistral, layout, targets, weights)
    monkeypatch.setattr("minise.checks.free_bytes", lambda: 100)
    with pytest.raises(InputError, match="packed tokens need a mask"):
        packed_loss(mistral, layout)


def test_the_first_token_of_a_vocabulary_is_a_target_like_any_other(mistral: LanguageModel) -> None:
    layout = pack([30], [[60, 61], [70]])
    first, other = (packed_loss(mistral, layout, [[token, 2, 3], [1, 2]]) for token in (0, 1))
    assert torch.isfinite(first)
    assert first != other


# ---- faults that training on packed branches really has

FAULTS: dict[str, Callable[[Patch], None]] = {}


def planted(name: str) -> Callable[[Callable[[Patch], None]], None]:
    return lambda plant: FAULTS.update({name: plant})


def of_terms(name: str) -> Callable[[Callable[..., Any]], None]:
    """A fault in which row is to predict what, and how much it counts."""

    def register(change: Callable[..., Any]) -> None:
        def plant(patch: Patch) -> None:
            real = training._terms
            patch.setattr(training, "_terms", lambda *given: change(real, *given))

        FAULTS[name] = plant

    return register


@of_terms("the trunk is counted twice")
def _(real: Any, paths: Any, targets: Any, weights: Any) -> Any:
    trunk = set(paths[0][: len(PREFIX)])
    return [(row, t, w * (1 + (row in trunk))) for row, t, w in real(paths, targets, weights)]


@of_terms("a shared token is counted once")
def _(real: Any, paths: Any, targets: Any, weights: Any) -> Any:
    seen: dict[int, Any] = {}
    for path, ids, weight in zip(paths, targets, weights, strict=True):
        for row, token in zip(path, ids, strict=True):
            seen.setdefault(row, (row, token, weight))
    return list(seen.values())


@of_terms("the weights are missing")
def _(real: Any, paths: Any, targets: Any, weights: Any) -> Any:
    return real(paths, targets, [1.0] * len(weights))


@of_terms("the weights of two branches are swapped")
def _(real: Any, paths: Any, targets: Any, weights: Any) -> Any:
    return real(paths, targets, [weights[1], weights[0], *weights[2:]])


@of_terms("a loss across the border of two branches")
def _(real: Any, paths: Any, targets: Any, weights: Any) -> Any:
    crossed = [*targets[0][:-1], BRANCHES[1][0]]
    return real(paths, [crossed, *targets[1:]], weights)


@of_terms("the targets are off by one")
def _(real: Any, paths: Any, targets: Any, weights: Any) -> Any:
    return real(paths, [[*ids[1:], -100] for ids in targets], weights)


@of_terms("no loss for the first token of a branch")
def _(real: Any, paths: Any, targets: Any, weights: Any) -> Any:
    at = len(PREFIX) - 1
    return real(paths, [[*ids[:at], -100, *ids[at + 1 :]] for ids in targets], weights)


@of_terms("the loss is a mean over tokens")
def _(real: Any, paths: Any, targets: Any, weights: Any) -> Any:
    terms = real(paths, targets, weights)
    return [(row, token, weight / len(terms)) for row, token, weight in terms]


def of_layout(name: str) -> Callable[[Callable[[Tree], None]], None]:
    """A fault in the layout that is trained on."""

    def register(change: Callable[[Tree], None]) -> None:
        def plant(patch: Patch) -> None:
            real = training.pack

            def packed(*given: Any, **named: Any) -> Tree:
                layout = real(*given, **named)
                change(layout)
                return layout

            patch.setattr(training, "pack", packed)

        FAULTS[name] = plant

    return register


@of_layout("the position of a branch's first token is off by one")
def _(layout: Tree) -> None:
    layout.positions[layout.paths()[1][len(PREFIX)]] += 1


@of_layout("positions do not start over")
def _(layout: Tree) -> None:
    layout.__dict__["positions"] = torch.arange(len(layout.tokens))


@of_layout("one cell of the mask leaks")
def _(layout: Tree) -> None:
    layout.mask[layout.ends[1], layout.ends[0]] = True


@of_layout("one cell of the mask is missing")
def _(layout: Tree) -> None:
    layout.mask[layout.ends[1], layout.ends[1] - 1] = False


@of_layout("the mask is causal over the whole row")
def _(layout: Tree) -> None:
    layout.__dict__["mask"] = causal_mask(len(layout.tokens))


@planted("the trunk is detached, as a cache of keys and values is")
def _(patch: Patch) -> None:
    real = Decoder.forward

    def forward(self: Any, tokens: Tensor, positions: Tensor, mask: Tensor) -> Tensor:
        states = real(self, tokens, positions, mask)
        if torch.equal(mask, causal_mask(len(mask))):
            return states
        return torch.cat([states[: len(PREFIX)].detach(), states[len(PREFIX) :]])

    patch.setattr(Decoder, "forward", forward)


@planted("a window by index")
def _(patch: Patch) -> None:
    real = definition.within

    def within(mask: Tensor, rows: Tensor, columns: Tensor, window: int | None) -> Tensor:
        index = torch.arange(mask.shape[-1])
        return real(mask, index, index, window)

    patch.setattr(definition, "within", within)


@planted("a mask that makes NaN")
def _(patch: Patch) -> None:
    """The mask as a number that is added, -inf times 0 where attention is allowed."""
    real = Decoder.forward

    def forward(self: Any, tokens: Tensor, positions: Tensor, mask: Tensor) -> Tensor:
        return real(self, tokens, positions, mask) + ((~mask).double() * -torch.inf).sum() * 0

    patch.setattr(Decoder, "forward", forward)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_of_training_is_found(
    mistral: LanguageModel, monkeypatch: Patch, fault: str
) -> None:
    FAULTS[fault](monkeypatch)
    assert not check_gradients(mistral, DEEP).passed


def test_at_least_twelve_faults_are_planted_and_none_is_found_without_them(
    mistral: LanguageModel,
) -> None:
    assert len(FAULTS) >= 12
    assert check_gradients(mistral, DEEP).passed


def test_of_many_prompts_eight_are_checked(mistral: LanguageModel) -> None:
    plan = plan_of([30], [[60 + n, 90] for n in range(17)], [3, 1])
    assert check_gradients(mistral, plan).groups == 6  # every third


def test_a_model_in_another_dtype_is_refused(tmp_path: Path) -> None:
    lm = load_tiny(tmp_path, ALL_FAMILIES["llama"], dtype=torch.float32)
    with pytest.raises(InputError, match="gradients are compared in float64"):
        check_gradients(lm, DEEP)
