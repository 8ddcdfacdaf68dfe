"""Every row is computed in a call of an allowed number of rows, and only once."""

import random

import pytest
import torch
from torch import Tensor

from minise.lab.equal_bits.calls import START, cost, in_calls, sizes_of_calls
from minise.lab.equal_bits.probe import NUMBERS


@pytest.mark.parametrize(
    "numbers", [(1,), (64,), (3, 5), (16, 64, 512), (1, 2, 4, 8, 512), NUMBERS]
)
def test_every_row_is_computed_once_in_calls_of_the_allowed_numbers(
    numbers: tuple[int, ...],
) -> None:
    """A call is filled up with zeros, and their results are left out."""
    draw = random.Random(0)
    for R in (0, 1, 2, 3, 63, 64, 65, *(draw.randrange(1, 1200) for _ in range(9))):
        x = torch.randn(R, 3, dtype=torch.float64)
        sizes: list[int] = []

        def double(rows: Tensor) -> Tensor:
            sizes.append(len(rows))  # noqa: B023
            assert len(rows) == 0 or rows.data_ptr() % 64 == 0
            return torch.cat([2 * rows, (rows == 0).all(dim=1, keepdim=True) + 7], dim=1)

        out = in_calls(double, x, numbers)
        assert torch.equal(out, torch.cat([2 * x, x.new_full((R, 1), 7)], dim=1))
        assert R == 0 or set(sizes) <= set(numbers)
        assert R == 0 or list(sizes_of_calls(R, numbers)) == sizes
        assert sum(sizes[:-1]) < R <= sum(sizes) or R == 0  # only the last may have spare rows


def test_a_kernel_gets_contiguous_and_aligned_rows() -> None:
    """Contiguous, from an address that is a multiple of 64 bytes: MKL chooses its order by that."""
    aligned: list[bool] = []

    def look(rows: Tensor) -> Tensor:
        aligned.append(rows.is_contiguous() and rows.data_ptr() % 64 == 0)
        return rows

    x = torch.randn(130, 7)
    for rows in (x, x[1:], x[:, 2:5], x[::2], torch.randn(7, 130).T, x[1:2].expand(65, -1)):
        for numbers in ((1,), (3, 5), (64,), (65, 129, 130)):
            assert torch.equal(in_calls(look, rows, numbers), rows)
    assert all(aligned)


def test_a_few_spare_rows_are_preferred_to_another_call() -> None:
    """Up to `start` of them: that is what the start of a call costs, in rows."""
    assert sizes_of_calls(500, (16, 64, 512), start=12) == (512,)
    assert sizes_of_calls(500, (16, 64, 512), start=11)[0] == 64
    assert sizes_of_calls(0, (16, 64)) == ()
    assert sizes_of_calls(600, (16, 64, 512)) == (512, 64, 64)
    assert cost(600, (16, 64, 512)) == 512 + 64 + 64 + 3 * START
