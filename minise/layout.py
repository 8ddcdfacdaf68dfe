"""Prompts that begin alike, laid out as branches of one tree of tokens (Section 4 of the paper).

A token attends to its ancestors and itself: the attention mask, Eq. 4.
A token's position is its depth: the positional re-encoding, Eq. 6.
A branch's last token reads out its labels: the row index_j.

The paper's packed sequence [Q, G1, G2, ...] is the tree with one trunk Q and one leaf per group.
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
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Layout:
    """A tree of T tokens in an order in which parents come before their children.

    tokens: (T,) int64 ids. parents: (T,) int64, the row of the token before this one in its prompt,
    -1 for the first. positions: (T,) int64 position ids, a token's depth. ends: (G,) int64, the row
    of each branch's last token, in the order given to `pack`.
    """

    tokens: Tensor
    parents: Tensor
    positions: Tensor
    ends: Tensor

    @property
    def mask(self) -> Tensor:
        """(T, T) bool, True = the row's token may attend to the column's. Built when asked for."""
        mask = torch.zeros(len(self.tokens), len(self.tokens), dtype=torch.bool)
        for row, parent in enumerate(self.parents.tolist()):
            if parent >= 0:
                mask[row] = mask[parent]  # what my parent sees, I see
            mask[row, row] = True
        return mask

    def paths(self) -> list[list[int]]:
        """Per branch, the rows of its whole prompt, first token to last."""
        parents, paths = self.parents.tolist(), []
        for row in self.ends.tolist():
            path = []
            while row >= 0:
                path.append(row)
                row = parents[row]
            paths.append(path[::-1])
        return paths


def causal_mask(length: int) -> Tensor:
    """(T, T) bool: each token attends to those before it and itself. A plain run of one prompt."""
    return torch.ones(length, length, dtype=torch.bool).tril()


def pack(prefix: Sequence[int], branches: Sequence[Sequence[int]], tree: bool = False) -> Layout:
    """Lay out the prompts `prefix + branch` in one sequence.

    tree=False is the paper's: the prefix once, then every branch whole. tree=True merges every
    common prefix of the prompts, so each distinct one is a single token; the numbers are the same.
    The prefix may be empty; a prompt may not. Raises ValueError for no branches or an empty prompt.
    """
    if not branches:
        raise ValueError("no branches to pack")
    tokens: list[int] = []
    parents: list[int] = []
    positions: list[int] = []
    children: dict[tuple[int, int], int] = {}  # (parent row, token id) -> row

    def grow(row: int, ids: Sequence[int], merge: bool) -> int:
        """Append `ids` below `row`, reusing what is already there if `merge`; the last row."""
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

    trunk = grow(-1, prefix, merge=False)
    ends = [grow(trunk, branch, merge=tree) for branch in branches]
    if min(ends) < 0:
        raise ValueError("an empty prompt: no prefix and an empty branch")
    return Layout(*(torch.tensor(rows) for rows in (tokens, parents, positions, ends)))


def token_counts(prefix: Sequence[int], branches: Sequence[Sequence[int]]) -> dict[str, int]:
    """How many tokens each engine runs for these prompts, by its name."""
    own = sum(map(len, branches))
    return {
        "separate": len(prefix) * len(branches) + own,
        "dense": len(prefix) + own,
        "tree": len(pack(prefix, branches, tree=True).tokens),
    }
