"""Exercise 4: sliding windows.

In some models, such as Mistral-7B-v0.1, a token attends to the last few tokens only, itself
included. "The last few" means positions. In one prompt position and index are the same. In a
packed sequence they are not: the branch that comes last has indices far behind its positions, and
a window of indices would hide the question from it.

Dimension legend: T tokens.
"""

from __future__ import annotations

from torch import Tensor


def windowed(mask_TT: Tensor, positions_T: Tensor, window: int) -> Tensor:
    """The mask with a window of `window` positions, the token's own included: (T, T) bool. What
    `mask_TT` (T, T) forbids stays forbidden. `positions_T`: (T,) int64.

    A prefix of two tokens and two branches of one token: each branch reads itself and the position
    before it.

    >>> import minise
    >>> layout = minise.pack([7, 8], [[1], [2]])
    >>> windowed(layout.mask, layout.positions, 2).int().tolist()
    [[1, 0, 0, 0], [1, 1, 0, 0], [0, 1, 1, 0], [0, 1, 0, 1]]
    """
    return mask_TT & (positions_T[:, None] - positions_T[None, :] < window)
