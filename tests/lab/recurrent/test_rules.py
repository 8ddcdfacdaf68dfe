"""Layers with a state under a mask: each token as in its own prompt alone, by both forms."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from minise.errors import InputError
from minise.lab.recurrent.chunks import by_chunks
from minise.lab.recurrent.convolution import convolve
from minise.lab.recurrent.paths import paths_of
from minise.lab.recurrent.steps import by_steps
from minise.layout import causal_mask, pack

Given = tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None]  # q, k, v, g, beta
DRAW = random.Random(0)


def ids(count: int) -> list[int]:
    return [DRAW.randrange(9) for _ in range(count)]


def tree_of(prefix: int, lengths: list[int]) -> Tensor:
    return pack(ids(prefix), [ids(length) for length in lengths], tree=True).mask


def breadth_first(prefix: int, lengths: list[int]) -> Tensor:
    """The same trees by depth: parents are far away."""
    layout = pack(ids(prefix), [ids(length) for length in lengths], tree=True)
    order = layout.positions.argsort(stable=True)
    return layout.mask[order][:, order]


def forest() -> Tensor:
    """Packed documents in one row, then three tokens of padding that see themselves alone."""
    trees = [tree_of(DRAW.randrange(40), [5, 1, 8, 3]) for _ in range(3)]
    padding = [torch.ones(1, 1, dtype=torch.bool)] * 3
    return torch.block_diag(*trees, *padding).bool()


MASKS: dict[str, Callable[[], Tensor]] = {
    "one token": lambda: causal_mask(1),
    "a chain of two chunks and more": lambda: causal_mask(150),
    "an empty prefix": lambda: tree_of(0, [3, 1, 8, 2, 5]),
    "branches of one token": lambda: tree_of(30, [1] * 7),
    "a branch that leaves in a chunk": lambda: tree_of(70, [40, 3, 60, 2]),
    "a tree": lambda: tree_of(130, [20, 9, 30, 1, 17, 70]),
    "a tree by depth": lambda: breadth_first(70, [20, 9, 30, 1, 17, 70]),
    "the paper's layout": lambda: pack(ids(20), [ids(9) for _ in range(12)]).mask,
    "a forest with padding": forest,
}


@pytest.fixture(params=MASKS)
def mask(request: pytest.FixtureRequest) -> Tensor:
    DRAW.seed(request.param)
    torch.manual_seed(0)
    return MASKS[request.param]()


def normal(*size: int) -> Tensor:
    return torch.randn(*size, dtype=torch.float64)


def slow(*size: int) -> Tensor:
    """Log decays of about exp(-0.02) a token: with fast ones nothing that leaks would be seen."""
    return -0.05 * torch.rand(*size, dtype=torch.float64)


def delta_of(T: int, channels: bool) -> Given:
    H, k, v = 2, 4, 3
    q, key = F.normalize(normal(T, H, k), dim=-1), F.normalize(normal(T, H, k), dim=-1)
    beta = torch.rand(T, H, dtype=torch.float64)
    return q, key, normal(T, H, v), slow(T, H, k if channels else 1), beta


def mamba2_of(T: int) -> Given:
    H, k, v = 2, 4, 3
    return normal(T, H, k), normal(T, H, k), normal(T, H, v), slow(T, H, 1), None


def mamba_of(T: int) -> Given:
    """Each of 5 channels is a head of its own; B and C are the same for all."""
    D, k = 5, 3
    q, key = normal(T, 1, k).expand(T, D, k), normal(T, 1, k).expand(T, D, k)
    return q, key, normal(T, D, 1), slow(T, D, k), None


LAYERS: dict[str, Callable[[int], Given]] = {
    "Gated DeltaNet": lambda T: delta_of(T, channels=False),
    "KDA": lambda T: delta_of(T, channels=True),
    "Mamba-2": mamba2_of,
    "Mamba": mamba_of,
}


def alone(given: Given, path: Tensor) -> Tensor:
    """What the last token of a prompt reads, by the four lines of the definition, head by head."""
    q, k, v, g, beta = given
    heads = []
    for head in range(v.shape[1]):
        state = torch.zeros(k.shape[2], v.shape[2], dtype=torch.float64)
        for t in path.tolist():
            state = g[t, head].exp()[:, None] * state
            u = v[t, head]
            if beta is not None:
                u = beta[t, head] * (u - k[t, head] @ state)
            state = state + torch.outer(k[t, head], u)
            out = q[t, head] @ state
        heads.append(out)
    return torch.stack(heads)


@pytest.mark.parametrize("layer", LAYERS)
def test_each_token_reads_what_it_reads_in_its_prompt_alone(mask: Tensor, layer: str) -> None:
    given = LAYERS[layer](len(mask))
    steps = by_steps(*given, paths_of(mask))
    chunks = by_chunks(*given, paths_of(mask))
    assert float((steps - chunks).abs().max()) < 1e-12
    rows = {*range(0, len(mask), 1 + len(mask) // 8), len(mask) - 1}
    for row in rows:
        expected = alone(given, mask[row].nonzero().flatten())
        assert float((steps[row] - expected).abs().max()) < 1e-12


@pytest.mark.parametrize("layer", LAYERS)
def test_gradients_are_the_same_by_both_forms(layer: str) -> None:
    mask = tree_of(70, [9, 12, 1, 15])
    torch.manual_seed(0)
    given = [one if one is None else one.clone() for one in LAYERS[layer](len(mask))]
    inputs = [one.requires_grad_() for one in given if one is not None]
    found = []
    for form in (by_steps, by_chunks):
        out = form(*given, paths_of(mask))  # type: ignore[arg-type]
        weights = torch.arange(out.numel(), dtype=torch.float64).cos().view(out.shape)
        found.append(torch.autograd.grad((weights * out).sum(), inputs))
    for by_definition, by_closed_form in zip(*found, strict=True):
        size = by_definition.abs().max()
        assert float((by_definition - by_closed_form).abs().max() / size) < 1e-12


@pytest.mark.parametrize("taps", [2, 3, 4])
def test_a_convolution_reads_the_path_as_torch_reads_the_prompt_alone(
    mask: Tensor, taps: int
) -> None:
    x, weight, bias = normal(len(mask), 5), normal(5, taps), normal(5)
    mine = convolve(x, weight, bias, paths_of(mask))
    for row in range(len(mask)):
        path = mask[row].nonzero().flatten()
        padded = F.pad(x[path].T[None], (taps - 1, 0))
        expected = F.conv1d(padded, weight[:, None], bias, groups=5)[0, :, -1]
        assert float((mine[row] - expected).abs().max()) < 1e-12


def test_a_convolution_in_bfloat16_is_summed_in_float32() -> None:
    torch.manual_seed(0)
    paths = paths_of(tree_of(60, [9, 20, 3]))
    x, weight = normal(len(paths.mask), 64).bfloat16(), normal(64, 4).bfloat16()
    wide = convolve(x.double(), weight.double(), None, paths)
    assert torch.equal(convolve(x, weight, None, paths), wide.bfloat16())


@pytest.mark.parametrize("decay", [0.01, 1.0, 20.0])
def test_long_paths_keep_their_digits_in_float32(decay: float) -> None:
    """The sum of decays of 2,048 tokens is in the thousands, and what is needed of it are
    differences near 0: some tokens keep the state."""
    torch.manual_seed(0)
    T = 2048
    q, k, v, _, beta = delta_of(T, channels=False)
    g = -decay * torch.rand(T, 2, 1, dtype=torch.float64)
    g[::5] *= 0.01
    mask = causal_mask(T)
    mask[1024:, 1000:1024] = False  # a branch ends there: the trunk is no whole story
    paths = paths_of(mask)
    expected = by_chunks(q, k, v, g, beta, paths)
    assert beta is not None
    narrow = by_chunks(*(one.float() for one in (q, k, v, g, beta)), paths)  # type: ignore[arg-type]
    assert float((narrow - expected).abs().max() / expected.abs().max()) < 3e-6


NO_TREES = {
    "row 0 of the mask sees a later token": torch.ones(3, 3, dtype=torch.bool),
    "row 3 of the mask does not see just itself, its parent 2": (
        causal_mask(5) & ~causal_mask(5).tril(-3)
    ),
    "row 2 of the mask does not see just itself, its parent 1": torch.tensor(
        [[1, 0, 0], [1, 1, 0], [0, 1, 1]]
    ).bool(),
    "row 1 of the mask does not see just itself;": torch.tensor([[1, 0], [0, 0]]).bool(),
    "row 2 of the mask does not see just itself, its parent 1 and": torch.tensor(
        [[1, 0, 0], [0, 1, 0], [1, 1, 1]]
    ).bool(),
}


@pytest.mark.parametrize("what", NO_TREES)
def test_a_mask_that_is_no_tree_is_refused_in_one_line(what: str) -> None:
    with pytest.raises(InputError, match="need the mask of a tree") as refused:
        paths_of(NO_TREES[what])
    assert str(refused.value).startswith(what)
    assert "\n" not in str(refused.value)
