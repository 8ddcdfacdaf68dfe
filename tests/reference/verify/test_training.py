"""The loss of packed branches and its gradients, and that faults of such training are found."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import minise.verify.training as training
from minise import Decoder, InputError, LocalModel, pack, packed_loss
from minise.layout import Layout, causal_mask
from minise.verify.comparison import sample
from minise.verify.recording import own_decoder
from minise.verify.training import check_gradients, is_same
from tests.reference.support.equal import equal_bits, needs_lab
from tests.reference.support.tiny import ALL_FAMILIES, load_tiny
from tests.reference.verify.cases import prompts_of

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
DEEP = prompts_of(PREFIX, BRANCHES, [3, 1, 2])
Patch = pytest.MonkeyPatch


@pytest.fixture(scope="module", params=ALL_FAMILIES)
def each(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> LocalModel:
    return load_tiny(tmp_path_factory.mktemp(request.param), ALL_FAMILIES[request.param])


@pytest.fixture(scope="module")
def mistral(tmp_path_factory: pytest.TempPathFactory) -> LocalModel:
    raw = {**ALL_FAMILIES["mistral"], "sliding_window": 13, "num_hidden_layers": 2}
    return load_tiny(tmp_path_factory.mktemp("mistral"), raw)


def test_gradients_of_packed_branches_are_the_sums_over_separate_prompts(
    each: LocalModel,
) -> None:
    largest = check_gradients(each, DEEP)
    assert is_same(largest)
    assert set(largest) == {"packed", "tree"}
    assert max(largest.values()) <= 1e-12
    assert not any(p.requires_grad for p in each.decoder.parameters())


def test_a_shared_token_counts_once_for_each_branch_times_its_weight(
    mistral: LocalModel,
) -> None:
    """By the definition, of each branch alone. The first target is the token 0."""
    weights = [1.0, 0.5, 0.25, 2.0, 3.0, 0.0, 4.0]
    targets = [[0, -100, *branch, -100] for branch in BRANCHES]
    expected = torch.zeros((), dtype=torch.float64)
    for branch, ids, weight in zip(BRANCHES, targets, weights, strict=True):
        whole = torch.tensor(PREFIX + branch)
        T = len(whole)
        states = mistral.decoder(whole, torch.arange(T), causal_mask(T))
        logs = mistral.decoder.logits(states).log_softmax(-1)
        expected -= weight * sum(logs[t, id] for t, id in enumerate(ids) if id != -100)
    for tree in (False, True):
        layout = pack(PREFIX, BRANCHES, tree=tree)
        loss = packed_loss(mistral, layout, targets, weights)
        assert torch.allclose(loss, expected, rtol=1e-13)
        following = [[*PREFIX[1:], *branch, -100] for branch in BRANCHES]
        given = packed_loss(mistral, layout, following, [1.0] * 7)
        assert torch.equal(packed_loss(mistral, layout), given)  # by default


def test_what_does_not_fit_is_refused(mistral: LocalModel, monkeypatch: Patch) -> None:
    layout = pack([30], [[60, 61], [70]])
    good = [[1, 2, 3], [1, 2]]
    for targets, weights, part in (
        (good[:1], None, "1 targets and 2 weights for 2 branches"),
        (good, [1.0], "2 targets and 1 weights for 2 branches"),
        ([[1, 2], [1, 2]], None, "the targets of branch 0 are not 3 token ids"),
        ([[1, 2, 3], [1, 288]], None, "the targets of branch 1"),
        ([[1, 2, 3], [1, -1]], None, "the targets of branch 1"),
        ([[-100] * 3, [-100] * 2], None, "every target is -100"),
    ):
        with pytest.raises(InputError, match=part):
            packed_loss(mistral, layout, targets, weights)
    monkeypatch.setattr("minise.memory.free_bytes", lambda: 10)
    with pytest.raises(InputError, match="packed tokens need a mask"):
        packed_loss(mistral, pack([30], [[60, 61], [70]]))


@needs_lab
def test_equal_bits_refuse_gradients_that_would_be_wrong(mistral: LocalModel) -> None:
    """And only gradients: without them the loss is that of the plain decoder."""
    equal = replace(mistral, decoder=equal_bits(own_decoder(mistral)))
    layout = pack(PREFIX, BRANCHES, tree=True)
    loss = packed_loss(equal, layout)
    assert torch.allclose(loss, packed_loss(mistral, layout), rtol=1e-13)
    with pytest.raises(InputError, match="equal bits have no gradients"):
        check_gradients(equal, DEEP)


# ---- faults that training on packed branches really has

FAULTS: dict[str, Callable[[Patch], None]] = {}


def of_terms(name: str, change: Callable[..., Any]) -> None:
    """A fault in which row is to predict what, and how much it counts: the targets and the weights
    of the branches that the loss is made of."""

    def plant(patch: Patch) -> None:
        real = training.packed_loss
        faulty = lambda lm, layout, *given: real(lm, layout, *change(*given))  # noqa: E731
        patch.setattr(training, "packed_loss", faulty)

    FAULTS[name] = plant


of_terms("the weights are missing", lambda ids, weights: (ids, [1.0] * len(weights)))
of_terms("two weights are swapped", lambda ids, w: (ids, [w[1], w[0], *w[2:]]))
of_terms("a loss crosses a border", lambda ids, w: ([[*ids[0][:-1], 60], *ids[1:]], w))
of_terms("targets are off by one", lambda ids, w: ([[*one[1:], -100] for one in ids], w))
of_terms(
    "no loss for the first token of a branch",
    lambda ids, w: ([[*one[:2], -100, *one[3:]] for one in ids], w),
)
of_terms("the loss is a mean", lambda ids, w: (ids, [one / len(w) for one in w]))
of_terms(
    "a shared token is counted once",
    lambda ids, w: ([ids[0], *([-100] * 3 + one[3:] for one in ids[1:])], w),
)


def of_layout(name: str, change: Callable[[Layout], Any]) -> None:
    """A fault in the layout that is trained on."""

    def plant(patch: Patch) -> None:
        real = training.pack

        def packed(*given: Any, **named: Any) -> Layout:
            layout = real(*given, **named)
            change(layout)
            return layout

        patch.setattr(training, "pack", packed)

    FAULTS[name] = plant


def cell(shown: bool, back: int) -> Callable[[Layout], None]:
    def change(layout: Layout) -> None:
        row = int(layout.ends[1])
        layout.mask[row, int(layout.ends[0]) if shown else row - back] = shown

    return change


of_layout("one cell of the mask leaks", cell(True, 0))
of_layout("one cell of the mask is missing", cell(False, 1))
of_layout("a branch's first position is off by one", lambda tree: tree.positions[3].add_(1))
of_layout(
    "positions do not start over",
    lambda tree: tree.__dict__.update(positions=torch.arange(len(tree.tokens))),
)
of_layout(
    "the mask is causal over the whole row",
    lambda tree: tree.__dict__.update(mask=causal_mask(len(tree.tokens))),
)


def of_forward(name: str, change: Callable[[Tensor, Tensor], Tensor]) -> None:
    """A fault in the states of a packed pass: change(states, mask)."""

    def plant(patch: Patch) -> None:
        real = Decoder.forward

        def forward(self: Any, tokens: Tensor, at: Tensor, mask: Tensor, *rows: Any) -> Tensor:
            states = real(self, tokens, at, mask, *rows)
            is_packed = not torch.equal(mask, causal_mask(len(mask)))
            return change(states, mask) if is_packed else states

        patch.setattr(Decoder, "forward", forward)

    FAULTS[name] = plant


of_forward(
    "the trunk is detached, as a cache of keys and values is",
    lambda states, mask: torch.cat([states[:3].detach(), states[3:]]),
)
of_forward(
    "a mask that makes NaN: it is added, as -inf times 0",
    lambda states, mask: states + ((~mask).double() * -torch.inf).sum() * 0,
)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_of_training_is_found(
    mistral: LocalModel, monkeypatch: Patch, fault: str
) -> None:
    FAULTS[fault](monkeypatch)
    assert not is_same(check_gradients(mistral, DEEP))


def test_of_many_prompts_a_sample_is_spread_over_all() -> None:
    prompts = prompts_of([30], [[60 + n, 90] for n in range(17)], [3, 1])
    assert [branch[0] for branch in sample(prompts).branches] == [60, 63, 66, 69, 72, 75]


def test_gradients_are_compared_only_in_float64(tmp_path: Path) -> None:
    lm = load_tiny(tmp_path, ALL_FAMILIES["llama"], dtype=torch.float32)
    with pytest.raises(InputError, match="gradients are compared in float64"):
        check_gradients(lm, DEEP)
