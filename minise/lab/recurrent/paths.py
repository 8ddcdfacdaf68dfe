"""What a mask says to a layer that has a state in place of attention.

A token's ancestors are the tokens that its row of the mask shows. In a tree they form a chain, and
its parent is the last of them. A recurrent layer continues from the state after the parent, and a
short convolution reads the token, its parent, the parent's parent, ... So the mask is enough.

    mask  7  8  1  2  3       parents    none 0  1  2  2
       7  x  .  .  .  .       taps of 3     4  2  1      (3 is row 4, then the rows of 1 and of 8)
       8  x  x  .  .  .
       1  x  x  x  .  .
       2  x  x  x  x  .
       3  x  x  x  .  x

Dimension legend: T tokens in one sequence; N taps; C rows of a chunk; S earlier rows that it reads.
Next to read: steps.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor

from minise.errors import InputError

CHUNK = 64  # rows


@dataclass(frozen=True, eq=False)
class Chunk:
    """Rows that are computed at once, and the earlier ones that they read. A chunk of the trunk
    reads the state before it, and no rows. A chunk after the trunk reads the state at the trunk's
    end, and rows between the trunk and itself: they are counted from the trunk's end, from 0.

    own_CC: which rows of the chunk a row sees. earlier_S: those rows between that some row of the
    chunk sees; seen_CS: which row sees which of them. before_C: the last of them that a row sees;
    -1 if it sees none.
    """

    rows: slice
    in_trunk: bool
    own_CC: Tensor
    earlier_S: Tensor
    seen_CS: Tensor
    before_C: Tensor


@dataclass(frozen=True, eq=False)
class Paths:
    """The paths of the tokens of one sequence. mask: (T, T) bool, True = the row's token sees the
    column's. parents: (T,) int64, the row of the token before; T where there is none. Made by
    `paths_of`, which refuses a mask that is no tree."""

    mask: Tensor
    parents: Tensor

    def taps(self, count: int) -> Tensor:
        """(T, count): the row of each token itself, of its parent, of the parent's parent, ...; T
        where there is none."""
        T = len(self.parents)
        none = self.parents.new_tensor([T])
        parents = torch.cat([self.parents, none])
        columns = [torch.arange(T, device=parents.device)]
        while len(columns) < count:
            columns.append(parents[columns[-1]])
        return torch.stack(columns, dim=1)

    @cached_property
    def depths(self) -> Tensor:
        """(T,) int64: how many ancestors each token has."""
        return self.mask.sum(dim=-1) - 1

    @cached_property
    def trunk(self) -> int:
        """So many first tokens, in whole chunks, are one chain that all later tokens continue."""
        # Multiplied from the last row up: at [t, t] stands whether t and all later rows see t.
        seen_by_all_later = self.mask.flip(0).cumprod(dim=0, dtype=torch.uint8).flip(0).diagonal()
        length = int(seen_by_all_later.cumprod(dim=0).sum())
        return length // CHUNK * CHUNK

    @cached_property
    def chunks(self) -> list[Chunk]:
        """All rows in order. Found once, for all layers of a pass."""
        chunks = []
        for start in range(0, len(self.mask), CHUNK):
            rows = slice(start, start + CHUNK)
            in_trunk = start < self.trunk
            earlier_CS = self.mask[rows, self.trunk : start]  # empty in the trunk
            numbers_S = torch.arange(1, earlier_CS.shape[1] + 1, device=self.mask.device)
            marked_CS = F.pad(earlier_CS * numbers_S, (1, 0))  # and a column where none is seen
            is_read_S = earlier_CS.any(dim=0)
            chunks.append(
                Chunk(
                    rows=rows,
                    in_trunk=in_trunk,
                    own_CC=self.mask[rows, rows],
                    earlier_S=is_read_S.nonzero().flatten(),
                    seen_CS=earlier_CS[:, is_read_S],
                    before_C=marked_CS.amax(dim=-1) - 1,
                )
            )
        return chunks


def paths_of(mask: Tensor) -> Paths:
    """The paths that a mask (T, T) bool describes, on its device. Raises InputError where it shows
    a token that comes later, or where a token does not see just what its parent sees: a sliding
    window, a hole, and two parents are no tree."""
    T = len(mask)
    needs = "layers with a state need the mask of a tree"
    later = mask.triu(1).any(dim=-1).nonzero().flatten()
    if len(later):
        row = int(later[0])
        raise InputError(f"row {row} of the mask sees a later token; {needs}: use a causal one")
    numbers = torch.arange(1, T + 1, dtype=torch.int32, device=mask.device)
    parents = (mask.tril(-1) * numbers).amax(dim=-1).long() - 1  # the last that a row sees; or -1
    none = torch.zeros(1, T, dtype=torch.bool, device=mask.device)
    expected = torch.cat([mask, none])[parents]  # what the parent sees, ...
    expected.fill_diagonal_(True)  # ... and the token itself
    wrong = (expected != mask).any(dim=-1).nonzero().flatten()
    if len(wrong):
        row = int(wrong[0])
        what = f"row {row} of the mask does not see just itself"
        if int(parents[row]) >= 0:
            what += f", its parent {int(parents[row])} and what that one sees"
        raise InputError(f"{what}; {needs}, without windows or holes")
    return Paths(mask, torch.where(parents < 0, T, parents))
