"""Tests of exercise 10. They compare with minise/lab/equal_bits/calls.py."""

from __future__ import annotations

from types import ModuleType

import pytest
import torch
from torch import Tensor

from exercises.checks import examples, holds
from minise.lab.equal_bits.calls import in_calls

ROWS, INPUTS, OUTPUTS = 4, 40, 5


def bits(x: Tensor) -> bytes:
    return x.contiguous().numpy().tobytes()


def kernel(x_RI: Tensor) -> Tensor:
    """A linear layer that sums in an order that depends on the number of rows, as real ones do."""
    weight = torch.randn(INPUTS, OUTPUTS, generator=torch.Generator().manual_seed(0))
    order = torch.randperm(INPUTS, generator=torch.Generator().manual_seed(len(x_RI)))
    total = torch.zeros(len(x_RI), OUTPUTS)
    for i in order.tolist():
        total += x_RI[:, i, None] * weight[i]
    return total


@pytest.fixture
def x_RI() -> Tensor:
    return torch.randn(10, INPUTS, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str
)
def test_numbers_that_differ_in_the_last_bit_differ(
    exercise: ModuleType, dtype: torch.dtype
) -> None:
    one = torch.ones(3, 2, dtype=dtype)
    near = one.clone()
    near[2, 1] += torch.finfo(dtype).eps
    holds(exercise.same_bits(one, one.clone()), f"equal tensors of {dtype} have the same bits")
    holds(not exercise.same_bits(one, near), f"1 and 1 + eps of {dtype} do not have the same bits")


def test_zero_and_minus_zero_differ_and_nan_is_itself(exercise: ModuleType) -> None:
    zero, nan = torch.zeros(2), torch.full((2,), torch.nan)
    holds(not exercise.same_bits(zero, -zero), "0.0 and -0.0 do not have the same bits")
    holds(exercise.same_bits(nan, nan.clone()), "a NaN and its copy have the same bits")


def test_shape_and_dtype_count(exercise: ModuleType) -> None:
    zeros = torch.zeros(2, 3)
    holds(not exercise.same_bits(zeros, zeros.T), "shapes (2, 3) and (3, 2) are not the same")
    holds(not exercise.same_bits(zeros, zeros[:1]), "shapes (2, 3) and (1, 3) are not the same")
    words = "float32 and float64 do not have the same bits"
    holds(not exercise.same_bits(zeros, zeros.double()), words)
    holds(exercise.same_bits(zeros.T, zeros.T.clone()), "a transposed tensor has its copy's bits")


def test_every_call_has_the_same_number_of_rows(exercise: ModuleType, x_RI: Tensor) -> None:
    seen: list[int] = []

    def watched(x: Tensor) -> Tensor:
        seen.append(len(x))
        return kernel(x)

    exercise.in_calls_of(ROWS, watched, x_RI)
    words = f"10 rows need three calls of {ROWS} rows; numbers of rows in your calls"
    holds(seen == [ROWS] * 3, f"{words}: {seen}")


def test_a_row_has_the_same_bits_alone_and_beside_others(
    exercise: ModuleType, x_RI: Tensor
) -> None:
    plain = [kernel(x_RI)[:1], kernel(x_RI[:1])]
    assert bits(plain[0]) != bits(plain[1]), "the kernel of this test is of no use here"
    together = exercise.in_calls_of(ROWS, kernel, x_RI)
    holds(len(together) == len(x_RI), f"10 rows must give 10 rows; yours gives {len(together)}")
    for row in range(len(x_RI)):
        alone = exercise.in_calls_of(ROWS, kernel, x_RI[row : row + 1])
        words = f"row {row} has other bits alone than beside the other rows"
        holds(bits(alone) == bits(together[row : row + 1]), words)
    expected = in_calls(kernel, x_RI, (ROWS,))
    holds(bits(together) == bits(expected), "the numbers are not those of calls of 4 rows")


def test_the_examples_are_true(exercise: ModuleType) -> None:
    examples(exercise)
