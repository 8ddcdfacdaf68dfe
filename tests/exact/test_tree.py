"""The tree gives the numbers of separate runs, and computes only what the mask allows."""

from __future__ import annotations

import random

import pytest
import torch

from minise import LanguageModel, Tree, pack
from minise.exact.attention import BLOCK, FEW, Calls, next_calls, tree_reader
from minise.exact.run import read_ends

# Prefix and branches: each a shape that a tree can have.
TREES: dict[str, tuple[list[int], list[list[int]]]] = {
    "a shared part longer than the prefix": ([5], [[6, 7, 8], [6, 7, 9, 10]]),
    "deep sharing": ([5], [[6, 7, 8], [6, 7, 9], [6, 10, 8], [11, 7, 8], [6, 7, 8, 12]]),
    "a branch that ends inside another": ([5], [[6, 7, 8], [6], [6, 7]]),
    "equal branches": ([5, 6], [[7, 8], [7, 8], [9]]),
    "an empty branch": ([5, 6, 7], [[], [8, 9]]),
    "a single token": ([], [[7]]),
    "a long prefix and short branches": (list(range(40, 100)), [[1], [2, 3]]),
    "branches of very unequal length": ([5], [[6], list(range(100, 160)), [7, 8]]),
}


def calls_of(tree: Tree, windows: tuple[int | None, ...]) -> list[Calls]:
    return list(tree_reader(tree, windows, torch.device("cpu")).calls)


def forest(seed: int) -> tuple[list[int], list[list[int]]]:
    """Branches over three tokens: many shared beginnings, at every depth."""
    draw = random.Random(seed)
    prefix = draw.choices(range(50, 53), k=draw.randrange(20))
    branches = [
        draw.choices(range(50, 53), k=draw.randrange(1, 40)) for _ in range(draw.randrange(1, 30))
    ]
    return prefix, branches


def test_no_mask_of_the_whole_sequence_is_built(
    lm: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: Tree) -> torch.Tensor:
        raise AssertionError("the dense mask was asked for")

    monkeypatch.setattr(Tree, "mask", property(refuse))
    read_ends(lm.refined, pack(*forest(0), tree=True))


@pytest.mark.parametrize("name", [*TREES, *(f"random {seed}" for seed in range(8))])
def test_every_token_reads_its_own_prompt_once(name: str) -> None:
    """Each row is a query in exactly one call. The keys that it sees in this call are its ancestors
    and itself in the order of positions; all other keys are masked."""
    tree = pack(*(TREES[name] if name in TREES else forest(int(name.split()[1]))), tree=True)
    read = []
    for call in calls_of(tree, (None, 7)):
        assert call.queries.shape[1] == BLOCK
        assert call.keys.shape[1] % BLOCK == 0
        for n, (queries, keys) in enumerate(zip(call.queries.tolist(), call.keys, strict=True)):
            for place, row in enumerate(queries):
                if row < 0:
                    continue
                read.append(row)
                for window, masks in call.masks.items():
                    visible = keys[masks[min(n, len(masks) - 1), place]].tolist()
                    ancestors = tree.mask[row].nonzero().flatten().tolist()
                    assert visible == (ancestors if window is None else ancestors[-window:])
    assert sorted(read) == list(range(len(tree.tokens)))


def test_shared_beginnings_are_read_in_one_call() -> None:
    """Forty prompts share a prefix of 70 tokens: its first 64 are in one call."""
    tree = pack(list(range(70)), [[100 + i] for i in range(40)], tree=True)
    calls = calls_of(tree, (None,))
    assert [call.keys.shape for call in calls] == [(1, 64), (40, 128)]


def test_prompts_grow_in_calls_of_64_or_128_or_more_keys() -> None:
    """Each prompt's last row is a query, and sees all tokens of its prompt, or those within the
    window."""
    lengths = torch.tensor([1, 64, 65, 130])
    paths = torch.arange(4 * 130).reshape(4, 130)
    calls = next_calls(paths, lengths, (None, 7))
    assert [call.keys.shape for call in calls] == [(2, 64), (1, 128), (1, 192)]
    assert [call.queries[:, 0].tolist() for call in calls] == [[0, 1], [2], [3]]
    for call in calls:
        assert call.queries.shape[1] == FEW
        assert (call.queries[:, 1:] == -1).all()
        for n, g in enumerate(call.queries[:, 0].tolist()):
            path = paths[g, : lengths[g]].tolist()
            assert call.keys[n][call.masks[None][n, 0]].tolist() == path
            assert call.keys[n][call.masks[7][n, 0]].tolist() == path[-7:]
