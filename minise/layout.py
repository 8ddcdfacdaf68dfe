"""Prompts that begin alike, laid out as branches of a tree of tokens (Self-Ensemble, Section 4).

A question has K choices. It becomes many short prompts: the question Q, and after it a few of the
choices, a group (G1, G2, ...). What is wanted are the logits after each prompt. All prompts run in
one sequence, as a tree:

A token attends to its ancestors and itself: the attention mask (Section 4.1, Eq. 3).
A token's position is its depth: the positional re-encoding (Section 4.2, the position list, Eq. 5).
A branch's last token is where its logits are read (Section 4.3, the readout, Eq. 6).

Only attention mixes tokens. Here each token sees the same tokens, at the same positions, as in a
run of its prompt alone. So, layer by layer, its hidden state is the same: one pass equals many.

The paper's packed sequence [Q, G1, G2, ...] is the tree with one prefix Q and one branch per group.
For Q = [7, 8], G1 = [1, 2], G2 = [1, 3]:

    pack([7, 8], [[1, 2], [1, 3]])              with tree=True, where G1 and G2 share their 1
    tokens     7  8  1  2  1  3                 tokens     7  8  1  2  3
    parents   -1  0  1  2  1  4                 parents   -1  0  1  2  2
    positions  0  1  2  3  2  3                 positions  0  1  2  3  3
    ends                3     5                 ends                3  4

    mask  7  8  1  2  1  3                      mask  7  8  1  2  3
       7  x  .  .  .  .  .                         7  x  .  .  .  .
       8  x  x  .  .  .  .                         8  x  x  .  .  .
       1  x  x  x  .  .  .                         1  x  x  x  .  .
       2  x  x  x  x  .  .                         2  x  x  x  x  .
       1  x  x  .  .  x  .                         3  x  x  x  .  x
       3  x  x  .  .  x  x

In definition.py: `pack`. This is the first file of the core; the next is grouping.py: which choices
share a group.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from minise.memory import check_mask_fits


@dataclass(frozen=True, eq=False)
class Layout:
    """T tokens in one sequence, where each stands, what each sees, and which rows are read.

    tokens: (T,) int64 ids. parents: (T,) int64, the row of the token before this one in its prompt,
    -1 for the first; parents come before their children. positions: (T,) int64 position ids.
    ends: (G,) int64, the row of each branch's last token, in the order that `pack` was given.
    """

    tokens: Tensor
    parents: Tensor
    positions: Tensor
    ends: Tensor

    @cached_property
    def mask(self) -> Tensor:
        """(T, T) bool, True = the row's token may attend to the column's: a token attends to its
        ancestors and itself. Built when it is first used: for 40,000 tokens it takes 1.6 GB. Raises
        InputError if it does not fit in memory."""
        T = len(self.tokens)
        check_mask_fits(T)
        mask = torch.zeros(T, T, dtype=torch.bool)
        cells = mask.numpy()  # the same memory: a row takes a tenth of torch's time
        for row, parent in enumerate(self.parents.tolist()):
            if parent >= 0:
                cells[row, :row] = cells[parent, :row]  # the parent and its ancestors
            cells[row, row] = True
        return mask

    def paths(self) -> list[list[int]]:
        """For each branch the rows of its whole prompt, first token to last."""
        parents = self.parents.tolist()
        paths = []
        for row in self.ends.tolist():
            path = []
            while row >= 0:
                path.append(row)
                row = parents[row]
            paths.append(path[::-1])
        return paths


def causal_mask(length: int) -> Tensor:
    """(T, T) bool: each token attends to itself and all tokens before it, as in one prompt."""
    return torch.ones(length, length, dtype=torch.bool).tril()


def pack(prefix: Sequence[int], branches: Sequence[Sequence[int]], tree: bool = False) -> Layout:
    """Lay out the prompts `prefix + branch` in one sequence.

    tree=False is the paper's layout: the prefix once, then every branch whole. tree=True merges
    every common beginning of two prompts: a token that several prompts share is laid out once. Each
    token still sees the same tokens at the same positions, so the results are the same. The prefix
    may be empty. Raises ValueError for no branches or an empty prompt.
    """
    tokens: list[int] = []
    parents: list[int] = []
    positions: list[int] = []
    children: dict[tuple[int, int], int] = {}  # (parent row, token id) -> row

    def grow(row: int, ids: Sequence[int], merge: bool) -> int:
        """Append `ids` below `row`, with `merge` reusing equal tokens. Returns the last row."""
        for token in ids:
            if merge and (row, token) in children:
                row = children[row, token]
                continue
            tokens.append(token)
            parents.append(row)
            positions.append(positions[row] + 1 if row >= 0 else 0)
            children[row, token] = len(tokens) - 1
            row = len(tokens) - 1
        return row

    last = grow(-1, prefix, merge=False)
    ends = [grow(last, branch, merge=tree) for branch in branches]
    if min(ends, default=-1) < 0:
        raise ValueError("no branches to pack, or an empty prompt")
    return Layout(
        torch.tensor(tokens), torch.tensor(parents), torch.tensor(positions), torch.tensor(ends)
    )


def shared_length(sequences: Sequence[Sequence[int]]) -> int:
    """How many ids at the beginning are the same in all sequences."""
    length = 0
    for column in zip(*sequences, strict=False):
        if len(set(column)) > 1:
            break
        length += 1
    return length
