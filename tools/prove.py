"""Prove that packed equals separate for all small trees of prompts, and for large random ones.

    python -m tools.prove                 all trees of up to 8 tokens, in two processes
    python -m tools.prove --tokens 6      all trees of up to 6 tokens
    python -m tools.prove --random 8000   a random tree of that many tokens, in 32 layers

A tree of prompts is a set of prompts, merged where they begin alike. Which tokens they are makes no
other difference to the code, so here each token is another. Each tree is run by all engines, with
every prefix that its prompts share, in a model of two layers, of which the first has a window.
Attention runs in chunks and calls of 2 queries, far fewer than usual, so that small trees too cross
from one to the next; all trees of one token less run in the usual ones as well. docs/verify.md has
what is proved.
"""

from __future__ import annotations

import argparse
import os
import random
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache

import torch

import minise.attention
import minise.lab.equal_bits.attention
from minise.config import Config, RopeScaling
from minise.lab.proof.proof import Prover
from minise.layout import pack, shared_length
from minise.prompts import Prompts

VOCABULARY = 50_000
LABELS = [3, 1, 2]
WINDOWS = (2, None)  # of the layers


@dataclass(frozen=True)
class Node:
    """A token of a tree of `size` tokens. ends: whether a prompt ends here."""

    size: int
    ends: bool
    children: tuple[Node, ...]


@cache
def trees(size: int) -> list[Node]:
    """All trees of so many tokens, each once. A token without children ends a prompt."""
    made = []
    for children in forests(size - 1):
        made.append(Node(size, True, children))
        if children:
            made.append(Node(size, False, children))
    return made


@cache
def forests(size: int) -> list[tuple[Node, ...]]:
    """All sets of trees with so many tokens in all. In a set the trees are in one order."""
    every: list[Node] = []
    for n in range(size, 0, -1):
        every += trees(n)

    def chosen(left: int, first: int) -> Iterator[tuple[Node, ...]]:
        """Sets of trees with `left` tokens in all, of those from place `first` on."""
        if left == 0:
            yield ()
        for place in range(first, len(every)):
            tree = every[place]
            if tree.size <= left:
                for rest in chosen(left - tree.size, place):
                    yield (tree, *rest)

    return list(chosen(size, 0))


def paths(forest: tuple[Node, ...], before: tuple[int, ...] = ()) -> Iterator[tuple[int, ...]]:
    """The prompts of a forest. A token is the number of the child that it is."""
    for number, node in enumerate(forest):
        path = (*before, number)
        if node.ends:
            yield path
        yield from paths(node.children, path)


def sets_of_prompts(tokens: int) -> Iterator[Prompts]:
    """Every tree of up to so many tokens, with every prefix that all of its prompts share."""
    ids: dict[tuple[int, ...], int] = {}  # a token for each place in a tree, the same in all trees
    for size in range(1, tokens + 1):
        for forest in forests(size):
            texts = []
            for path in paths(forest):
                text = []
                for n in range(1, len(path) + 1):
                    text.append(ids.setdefault(path[:n], len(ids) + 4))
                texts.append(text)
            shared = texts[0][: shared_length(texts)]
            for n in range(len(shared) + 1):
                yield prompts_of(shared[:n], [text[n:] for text in texts])


def prompts_of(prefix: list[int], branches: list[list[int]]) -> Prompts:
    return Prompts(prefix, branches, [LABELS] * len(branches))


def config(windows: tuple[int | None, ...]) -> Config:
    """Heads that share keys, norms of queries and keys, and biases."""
    return Config(
        model_type="qwen2",
        vocab_size=VOCABULARY,
        hidden_size=8,
        intermediate_size=8,
        num_hidden_layers=len(windows),
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=2,
        rms_norm_eps=1e-5,
        rope_theta=1e4,
        rope_scaling=RopeScaling(),
        max_position_embeddings=10**6,
        qkv_bias=True,
        sliding_windows=windows,
        tie_word_embeddings=True,
        qk_norm=True,
    )


@contextmanager
def queries_at_once(number: int | None) -> Iterator[None]:
    """Attention in chunks and calls of so many queries; None: as usual."""
    core = minise.attention
    fixed = minise.lab.equal_bits.attention
    chunk, block = core.CHUNK, fixed.BLOCK
    try:
        if number is not None:
            core.CHUNK = number
            fixed.BLOCK = number
        yield
    finally:
        core.CHUNK, fixed.BLOCK = chunk, block


def prove_all(tokens: int, queries: int | None = None, part: int = 0, parts: int = 1) -> int:
    """Prove a part of `sets_of_prompts(tokens)`, in chunks and calls of `queries`. Returns how many
    were proved. Raises AssertionError with the first that fails."""
    torch.set_num_threads(1)
    count = 0
    with queries_at_once(queries):
        prover = Prover(config(WINDOWS))
        for number, prompts in enumerate(sets_of_prompts(tokens)):
            if number % parts == part:
                proof = prover.prove(prompts)
                assert proof.passed, f"{prompts.prefix} {prompts.branches}: {proof}"
                count += 1
    return count


def random_prompts(tokens: int, seed: int) -> Prompts:
    """Branches that begin with parts of one another, until their tree has so many tokens."""
    draw = random.Random(seed)
    ids = range(100, 1000)  # a proof takes 1,024 different tokens
    prefix = draw.choices(ids, k=200)
    branches = [draw.choices(ids, k=100)]
    left = tokens - 300
    while left > 0:
        length = min(left, draw.randrange(1, 150))
        new = draw.choices(ids, k=length)
        earlier = draw.choice(branches)
        kept = draw.randrange(min(len(earlier), 200))
        branches.append(earlier[:kept] + new)
        left -= length
    return prompts_of(prefix, branches)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=8, help="of the largest trees (default: 8)")
    parser.add_argument("--random", type=int, metavar="TOKENS", help="a random tree instead")
    parser.add_argument("--layers", type=int, default=32, help="of its model (default: 32)")
    parser.add_argument("--seed", type=int, default=0, help="of the random tree (default: 0)")
    parser.add_argument("--processes", type=int, default=2, help="(default: 2)")
    args = parser.parse_args()
    start = time.perf_counter()
    if args.random:
        prove_random(args.random, args.layers, args.seed)
    else:
        prove_all_at_once(args.tokens - 1, None, args.processes)
        prove_all_at_once(args.tokens, 2, args.processes)
    used = sum(os.times()[:4])  # of this process and of those it started
    print(f"{time.perf_counter() - start:.0f} s, {used:.0f} s of processor time")


def prove_all_at_once(tokens: int, queries: int | None, processes: int) -> None:
    """`prove_all` in several processes."""
    with ProcessPoolExecutor(processes) as pool:
        jobs = []
        for part in range(processes):
            jobs.append(pool.submit(prove_all, tokens, queries, part, processes))
        count = sum(job.result() for job in jobs)
    about = "the usual number of" if queries is None else queries
    print(f"{count:,} layouts of up to {tokens} tokens, {about} queries: all equal")


def prove_random(tokens: int, layers: int, seed: int) -> None:
    """Prove a random tree by the engine tree; one layer in two has a window."""
    prompts = random_prompts(tokens, seed)
    tree = pack(prompts.prefix, prompts.branches, tree=True)
    prover = Prover(config((None, 100) * (layers // 2)))
    names = ("tree", "tree, equal bits")
    proof = prover.prove(prompts, names)
    assert proof.passed, proof
    size = f"{len(tree.tokens):,} tokens in {layers} layers"
    print(f"a tree of {size}: its {proof.rows['tree']:,} rows equal those of")
    print(f"{proof.groups:,} separate prompts of {proof.tokens:,} tokens, also with equal bits")


if __name__ == "__main__":
    main()
