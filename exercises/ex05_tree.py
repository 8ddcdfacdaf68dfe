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
    raise NotImplementedError


def tree_mask(parents: Sequence[int]) -> Tensor:
    """The mask of a tree: (T, T) bool, True where the column is the row itself or an ancestor of
    it. Parents come before their children.

    >>> tree_mask([-1, 0, 0]).int().tolist()
    [[1, 0, 0], [1, 1, 0], [1, 0, 1]]
    """
    raise NotImplementedError
