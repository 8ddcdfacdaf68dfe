"""The kernels of other machines, and worse ones: an `F.linear` in whose calls the number of rows
decides in which order the inner dimension is summed.

Numbers of rows that sum alike are a class. The tables were measured on an Intel CPU with AMX; a
number that nobody measured is a class of its own, and so is every number in "no two alike". In
calls of one number of rows each row gets the same bits at any place: all that is computed is
products and sums of two numbers.
"""

from collections.abc import Callable
from functools import lru_cache

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

ClassOf = Callable[[int], int]  # of a number of rows
PIECE = 16  # products whose sum is rounded to the dtype


def table(*classes: tuple[tuple[int, int], ...]) -> ClassOf:
    """Each class is some ranges of numbers of rows, their ends included."""

    def class_of(rows: int) -> int:
        for number, ranges in enumerate(classes):
            if any(first <= rows <= last for first, last in ranges):
                return number
        return rows + len(classes)

    return class_of


MANY = 1 << 30
# By the dtype in which each was seen.
KERNELS: dict[torch.dtype, dict[str, ClassOf]] = {
    torch.float64: {
        "one thread": table(((1, 1),), ((2, 3),), ((4, 160),), ((192, MANY),)),
        "two threads": table(((1, 1),), ((2, 3),), ((4, 8), (136, MANY)), ((16, 128),)),
        "no two alike": lambda rows: rows,
    },
    torch.float32: {
        "one thread": table(((1, 1),), ((2, 8),), ((16, MANY),)),
        "two threads": table(((1, 1),), ((2, 8),), ((16, 128),), ((136, MANY),)),
        "no two alike": lambda rows: rows,
    },
    torch.bfloat16: {
        "4096 x 1024": table(
            ((1, 32),), ((40, 136), (256, 256)), ((160, 160),), ((192, 192),), ((320, MANY),)
        ),
        "two threads": table(((1, 32), (512, MANY)), ((40, 384),)),
        "no two alike": lambda rows: rows,
    },
}


def plant(monkeypatch: pytest.MonkeyPatch, class_of: ClassOf) -> None:
    """Let this kernel take the place of each product of matrices that Python can name."""
    monkeypatch.setattr(F, "linear", linear_by(class_of))
    product = matmul_by(class_of)
    for owner in (torch, Tensor):
        monkeypatch.setattr(owner, "mm", product)
        monkeypatch.setattr(owner, "matmul", product)
    monkeypatch.setattr(Tensor, "__matmul__", product)


def linear_by(class_of: ClassOf) -> Callable[..., Tensor]:
    """An `F.linear` that sums in the order of its class."""

    def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        wide = torch.promote_types(x.dtype, torch.float32)
        rows = x.reshape(-1, x.shape[-1]).to(wide)
        order = order_of(class_of(len(rows)), rows.shape[1])
        fill = (0, -len(order) % PIECE)
        rows, columns = F.pad(rows[:, order], fill), F.pad(weight.to(wide)[:, order], fill)
        total = rows.new_zeros(len(rows), len(weight))
        for row, column in zip(rows.T.split(PIECE), columns.T.split(PIECE), strict=True):
            part = row[:, :, None] * column[:, None, :]
            while len(part) > 1:
                part = part[: len(part) // 2] + part[len(part) // 2 :]
            # Rounded, as where parts of a long sum are handed over in a narrow dtype.
            total += part[0].to(x.dtype)
        out = total if bias is None else total + bias.to(wide)
        return out.to(x.dtype).view(*x.shape[:-1], len(weight))

    return linear


def matmul_by(class_of: ClassOf) -> Callable[..., Tensor]:
    """A product of matrices that sums as `linear_by` does; what has more dimensions is torch's."""
    linear, real = linear_by(class_of), torch.matmul

    def product(a: Tensor, b: Tensor, **more: object) -> Tensor:
        if a.dim() < 2 or b.dim() != 2 or more:
            return real(a, b, **more)
        return linear(a, b.T)

    return product


@lru_cache
def order_of(number: int, length: int) -> Tensor:
    """The order of summation of a class."""
    if number == 0:
        return torch.arange(length)
    return torch.randperm(length, generator=torch.Generator().manual_seed(number))
