"""With equal bits every query reads its own prompt, in calls of near keys and of far ones."""

import random

import pytest
import torch

from minise import Layout, LocalModel, pack
from minise.lab.equal_bits.attention import BLOCK, FEW, MANY, Calls, numbers_of_queries, reader_of
from minise.lab.equal_bits.decoder import EqualBits
from minise.layout import causal_mask

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


def calls_of(tree: Layout, lm: LocalModel) -> list[Calls]:
    return list(reader_of(tree.mask, tree.positions, EqualBits(lm.decoder), None).calls)


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


@pytest.mark.parametrize("name", [*TREES, *(f"random {seed}" for seed in range(8))])
def test_every_token_reads_its_own_prompt_once(lm: LocalModel, name: str) -> None:
    """Each row is a query in one call of near keys, and after that in one of far keys, if its place
    has any. The keys that it sees are its ancestors and itself; all others are masked."""
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


def test_shared_beginnings_are_read_in_one_call(lm: LocalModel) -> None:
    """Forty prompts share a prefix of 270 tokens: its first three blocks are read by all together.
    Each prompt has a call of its own for the last two blocks."""
    tree = pack(list(range(270)), [[100 + i, 7] for i in range(40)], tree=True)
    read: dict[tuple[int, ...], set[int]] = {}
    for call in (call for call in calls_of(tree, lm) if call.far):
        for keys, queries in zip(call.keys[:, [0, -1]].tolist(), call.queries, strict=True):
            read.setdefault((*keys,), set()).update(queries.tolist())
    sizes = {keys: len(queries) for keys, queries in read.items()}
    assert sizes == {(0, 63): 64, (0, 127): 64, (0, 191): 14 + 2 * 40}


def test_cached_tokens_are_keys_and_no_queries(lm: LocalModel) -> None:
    """Each prompt grows by one token: its query sees all tokens of its prompt, or those within the
    window."""
    lengths = [1, 64, 65, 130]
    cached = causal_mask(sum(lengths))[torch.tensor(lengths).cumsum(0) - 1]
    starts = torch.tensor([0, *lengths[:-1]]).cumsum(0)
    cached &= torch.arange(sum(lengths)) >= starts[:, None]
    mask = torch.cat([cached, torch.eye(4, dtype=torch.bool)], dim=1)
    positions = torch.cat([*(torch.arange(n) for n in lengths), torch.tensor(lengths)])
    for window in (None, 7, 70):
        read: dict[int, list[int]] = {}
        for call in reader_of(mask, positions, EqualBits(lm.decoder), None).calls:
            for n in range(len(call.queries)):
                for query, seen in read_by(call, n, window):
                    read[query] = read.get(query, []) + seen
        for query, seen in read.items():
            expected = mask[query].nonzero().flatten().tolist()
            assert sorted(seen) == sorted(expected[-window:] if window else expected)
        assert sorted(read) == [0, 1, 2, 3]


def test_queries_that_see_no_prompt_are_read_in_one_call(lm: LocalModel) -> None:
    """As without the mask, where positions start over with each group."""
    layout = pack([5, 6, 7], [[8, 9], [10]])
    calls = reader_of(causal_mask(6), layout.positions, EqualBits(lm.decoder), None).calls
    [rest] = [call for call in calls if call.mask is not None]
    assert rest.queries.tolist() == [[5]]
    assert rest.seen(None).tolist() == [[[True] * 6]]


def test_numbers_of_queries_are_measured_once_for_a_shape(lm: LocalModel) -> None:
    decoder = EqualBits(lm.decoder)
    numbers = numbers_of_queries(decoder)
    assert BLOCK in numbers
    assert set(numbers) <= {*FEW, BLOCK, *MANY}
    assert numbers_of_queries(decoder) is numbers
