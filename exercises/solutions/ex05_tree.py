"""Exercise 5: a tree of prompts.

Branches often begin alike, too: "(A) Lima" is the first line of every group that starts with Lima.
What several prompts begin with can be laid out once. The prompts are then a tree of tokens, and
each token has a parent: the token before it in its prompt. A token sees its ancestors and itself.

Two tokens may be merged only if all tokens before them are the same. The same token at the same
place of two prompts is not enough: it has seen other tokens, so its hidden state is another.

Dimension legend: T tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def merge(prompts: Sequence[Sequence[int]]) -> tuple[list[int], list[int], list[int]]:
    """Lay out prompts, lists of token ids, as a tree: (tokens, parents, ends).

    tokens: the T ids, prompt after prompt. A token that is there already, after the same tokens, is
    not laid out again. parents: for each of the T tokens the row of its parent, -1 for the first
    token of a prompt. ends: for each prompt the row of its last token.

    >>> merge([[7, 8, 1], [7, 8, 2]])
    ([7, 8, 1, 2], [-1, 0, 1, 1], [2, 3])
    """
    tokens: list[int] = []
    parents: list[int] = []
    ends: list[int] = []
    rows: dict[tuple[int, int], int] = {}  # (parent, token id) -> row
    for prompt in prompts:
        row = -1
        for token in prompt:
            if (row, token) not in rows:
                rows[row, token] = len(tokens)
                tokens.append(token)
                parents.append(row)
            row = rows[row, token]
        ends.append(row)
    return tokens, parents, ends


def tree_mask(parents: Sequence[int]) -> Tensor:
    """The mask of a tree: (T, T) bool, True where the column is the row itself or an ancestor of
    it. Parents come before their children.

    >>> tree_mask([-1, 0, 0]).int().tolist()
    [[1, 0, 0], [1, 1, 0], [1, 0, 1]]
    """
    mask = torch.eye(len(parents), dtype=torch.bool)
    for row, parent in enumerate(parents):
        if parent >= 0:
            mask[row] |= mask[parent]
    return mask
