"""The tree gives the numbers of separate runs, and computes only what the mask allows."""

import random

import pytest
import torch

from minise import LanguageModel, Tree, pack
from minise.equal_bits.attention import BLOCK, FEW, MANY, Calls, tree_reader
from minise.equal_bits.run import read_ends
from minise.writing.generation import next_calls

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
    "far keys": (list(range(150)), [[200 + i, *range(i, 70 + i)] for i in range(3)]),
}


def calls_of(tree: Tree, lm: LanguageModel) -> list[Calls]:
    return list(tree_reader(tree, lm.refined).calls)


def read_by(call: Calls, n: int, window: int | None) -> list[tuple[int, list[int]]]:
    """The queries of one of the calls, each with the rows that it sees in their order."""
    keys, mask = call.keys[n], call.seen(window)
    queries = dict.fromkeys(call.queries[n].tolist())  # the last is repeated in empty places
    shown = torch.ones(len(queries), len(keys)).bool() if mask is None else mask[n % len(mask)]
    return [(row, keys[seen].tolist()) for row, seen in zip(queries, shown, strict=False)]


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
def test_every_token_reads_its_own_prompt_once(lm: LanguageModel, name: str) -> None:
    """Each row is a query in one call of near keys, and after that in those of far keys, as many as
    its place says. The keys that it sees are its ancestors and itself; all others are masked."""
    tree = pack(*(TREES[name] if name in TREES else forest(int(name.split()[1]))), tree=True)
    for window in (None, 7, 100, 130):
        read: dict[int, list[int]] = {}
        for call in calls_of(tree, lm):
            assert call.queries.shape[1] in (*FEW, BLOCK, *MANY)
            assert call.keys.shape[1] % BLOCK == 0
            for n in range(len(call.queries)):
                for row, seen in read_by(call, n, window):
                    assert (row in read) == call.far
                    read[row] = read.get(row, []) + seen
        for row, seen in read.items():
            ancestors = tree.mask[row].nonzero().flatten().tolist()
            assert sorted(seen) == sorted(ancestors if window is None else ancestors[-window:])
        assert sorted(read) == list(range(len(tree.tokens)))


def test_shared_beginnings_are_read_in_one_call(lm: LanguageModel) -> None:
    """Forty prompts share a prefix of 270 tokens: its first three blocks are read by all together,
    in stretches of two and of one. Each prompt has a call of its own for the last two blocks."""
    tree = pack(list(range(270)), [[100 + i, 7] for i in range(40)], tree=True)
    read: dict[tuple[int, ...], set[int]] = {}
    for call in (call for call in calls_of(tree, lm) if call.far):
        for keys, queries in zip(call.keys[:, [0, -1]].tolist(), call.queries, strict=True):
            read.setdefault((*keys,), set()).update(queries.tolist())
    sizes = {keys: len(queries) for keys, queries in read.items()}
    assert sizes == {(0, 127): 64 + 14 + 2 * 40, (0, 63): 64, (128, 191): 14 + 2 * 40}
    assert sum(len(call.queries) for call in calls_of(tree, lm)) - 6 == 4 + 40


def test_prompts_grow_in_calls_of_far_and_near_keys(lm: LanguageModel) -> None:
    """Each prompt's last row is a query, and sees all tokens of its prompt, or those within the
    window."""
    lengths = torch.tensor([1, 64, 65, 130])
    paths = torch.arange(4 * 130).reshape(4, 130)
    for window in (None, 7, 70):
        read: dict[int, list[int]] = {}
        for call in next_calls(paths, lengths, lm.refined):
            assert call.queries.shape[1] in (FEW[0], BLOCK)
            for n in range(len(call.queries)):
                for g, seen in read_by(call, n, window):
                    read[g] = read.get(g, []) + seen
        for g, length in enumerate(lengths.tolist()):
            assert sorted(read[g]) == paths[g, :length].tolist()[-(window or length) :]
