"""Borders beside borders: a mask that is causal in segments, against the documents that were meant.

No mask (T, T) is made: tokens are sorted by their segments and counted, in O(T log T).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Borders:
    """given, meant: (T,) int64, the segment of each token, as it is given and as it should be. A
    token may attend to the tokens of its segment up to itself. hidden: (T,) bool, tokens to which
    nobody may attend. real: (T,) bool; a token of no prompt is False, and what it reads does not
    matter."""

    given: Tensor
    meant: Tensor
    hidden: Tensor
    real: Tensor

    def differences(self) -> Differences | None:
        """How the two differ in what real tokens may attend to; None if they do not."""
        both = pairs(self.given, self.meant)
        given = seen(self.given, ~self.hidden)
        right = seen(self.meant, self.real)
        common = seen(both, self.real & ~self.hidden)
        leaks = torch.where(self.real, given - common, 0)
        missing = torch.where(self.real, right - common, 0)
        wrong = (leaks + missing).nonzero().flatten()
        if not len(wrong):
            return None
        row = int(wrong[0])
        is_given, is_right = self.cells(row)
        column = int((is_given != is_right).nonzero()[0])
        return Differences(
            row=row,
            column=column,
            is_leak=bool(is_given[column]),
            leaks=int(leaks.sum()),
            missing=int(missing.sum()),
        )

    def cells(self, row: int) -> tuple[Tensor, Tensor]:
        """To what one token may attend, as given and as it should: (row + 1,) bool each."""
        upto = slice(0, row + 1)
        given = (self.given[upto] == self.given[row]) & ~self.hidden[upto]
        right = (self.meant[upto] == self.meant[row]) & self.real[upto]
        return given, right

    def shows_all(self, padding: bool, documents: bool) -> bool:
        """Whether what real tokens may attend to is: all before them of the other documents (or of
        their own alone), and all padding before them (or none)."""
        padded = ~self.real
        in_segment = seen(self.given, ~self.hidden)
        if documents:
            right = self.real.cumsum(0)
            common = seen(self.given, self.real & ~self.hidden)
        else:
            right = seen(self.meant, self.real)
            common = seen(pairs(self.given, self.meant), self.real & ~self.hidden)
        if padding:
            right = right + padded.cumsum(0)
            common = common + seen(self.given, padded & ~self.hidden)
        is_same = (in_segment == right) & (common == right)
        return bool(is_same[self.real].all())

    def moved(self) -> str:
        """Which border stands at a wrong place, if that is all: real tokens are documents one after
        the other, and see no padding. Else empty."""
        if seen(self.given, ~self.real & ~self.hidden)[self.real].any():
            return ""
        given = self.ends(self.given)
        meant = self.ends(self.meant)
        wrong = []
        if len(given) == len(meant):
            for number, (end, right) in enumerate(zip(given, meant, strict=True), start=1):
                if end != right:
                    wrong.append(f"border {number} stands at {end}, meant {right}")
        elif given:
            wrong = [f"no border stands at {end}" for end in meant if end not in given]
            wrong += [
                f"a border stands at {end}, none is meant" for end in given if end not in meant
            ]
        if len(wrong) > 1:
            return f"{wrong[0]} (and {len(wrong) - 1:,} more)"
        return "".join(wrong)

    def ends(self, segments: Tensor) -> list[int]:
        """Where the real tokens of each segment end, if none goes on after another; else none."""
        rows = self.real.nonzero().flatten()
        numbers, lengths = segments[rows].unique_consecutive(return_counts=True)
        is_one_by_one = len(numbers) == len(numbers.unique())
        return (rows[lengths.cumsum(0) - 1] + 1).tolist() if is_one_by_one else []


@dataclass(frozen=True)
class Differences:
    """The first token that may attend to what it should not, or not to what it should, and which
    (is_leak says which of the two). leaks, missing: how many pairs of tokens are so."""

    row: int
    column: int
    is_leak: bool
    leaks: int
    missing: int


def pairs(a: Tensor, b: Tensor) -> Tensor:
    """(T,) int64: a number for each pair of the two segments of a token."""
    a = a.unique(return_inverse=True)[1]
    b = b.unique(return_inverse=True)[1]
    return a * len(b) + b


def seen(segments: Tensor, shown: Tensor) -> Tensor:
    """(T,) int64: how many tokens of its segment up to itself are shown, for each token."""
    in_order, order = segments.sort(stable=True)
    counts = shown[order].long().cumsum(0)
    first = torch.searchsorted(in_order, in_order)  # the first token of the same segment
    before = counts[first] - shown[order][first].long()
    result = torch.empty_like(counts)
    result[order] = counts - before
    return result


def seen_by_any(segments: Tensor, hidden: Tensor, where: Tensor) -> Tensor:
    """(T,) bool: the tokens to which at least one of the tokens `where` may attend."""
    number = segments.unique(return_inverse=True)[1]
    index = torch.arange(len(segments))
    last = torch.full_like(index, -1)  # of these, in each segment
    last = last.scatter_reduce(0, number[where], index[where], "amax")
    return (index <= last[number]) & ~hidden
