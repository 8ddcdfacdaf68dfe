"""The probe measures which numbers of rows share their bits, and chooses a class of them."""

import math
from collections.abc import Callable
from itertools import permutations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from minise.lab.equal_bits.probe import (
    NUMBERS,
    ROWS,
    Shape,
    alike,
    choose,
    measure,
    numbers_for,
    samples,
    tried,
)
from tests.lab.support.hostile import KERNELS, linear_by, table

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
SHAPE = Shape(32, 24, False, torch.float32, 1)


@pytest.mark.parametrize("dtype", DTYPES)
class TestSamples:
    WIDTHS = (7, 20, 32, 192, 896)

    @pytest.mark.parametrize("bias", [False, True])
    def test_each_exact_sum_of_the_samples_is_zero_or_one_product(
        self, dtype: torch.dtype, bias: bool
    ) -> None:
        """The other products cancel. If anything of them is left, it was rounded on the way."""
        for inputs in self.WIDTHS:
            weight, added, rows = samples(Shape(inputs, 40, bias, dtype, 1))
            assert weight.shape == (40, inputs)
            assert rows.shape == (ROWS, inputs)
            assert weight.dtype == rows.dtype == dtype
            assert (added is not None) == bias
            assert added is None or (added == 0).sum() >= 10
            products = rows[:2, None].double() * weight[:8].double()
            for number, column in enumerate(products.transpose(0, 1).tolist()):
                for sizes in column:
                    assert any(sizes)
                    total = math.fsum(sizes)  # rounded once, at the end
                    assert total in (sizes if number % 2 else [0])

    def test_another_order_of_summation_gives_other_bits(self, dtype: torch.dtype) -> None:
        """Even the first row shows it, which is the only one in a call of one row: summed
        backwards, in 2, 3 or 4 parts, in parts that are rounded to the dtype, or in parts of other
        lengths."""
        for inputs in self.WIDTHS[1:]:
            weight, added, rows = samples(Shape(inputs, 64, inputs % 64 > 0, dtype, 1))
            wide = torch.promote_types(dtype, torch.float32)
            products = rows[:1, None].to(wide) * weight.to(wide)

            def summed(lengths: list[int], back: bool = False, narrow: bool = False) -> Tensor:
                total = products.new_zeros(products.shape[:2])  # noqa: B023
                ordered = products.flip(-1) if back else products  # noqa: B023
                for some in ordered.split(lengths, dim=-1):
                    part = torch.zeros_like(total)
                    for product in some.unbind(dim=-1):
                        part = part + product
                    total = total + (part.to(dtype).to(wide) if narrow else part)  # noqa: B023
                return (total if added is None else total + added).to(dtype)  # noqa: B023

            def parts(number: int) -> list[int]:
                return [len(part) for part in torch.arange(inputs).tensor_split(number)]  # noqa: B023

            ways = [summed(parts(1)), summed(parts(1), back=True)]
            ways += [summed(parts(number)) for number in (2, 3, 4)]
            halves = [parts(2), [inputs // 4, inputs - inputs // 4], parts(4)]
            rounded = [summed(lengths, narrow=True) for lengths in halves]
            for some in (ways, rounded):
                assert not any(torch.equal(a, b) for a, b in permutations(some, 2)), inputs


class TestAlike:
    @pytest.mark.parametrize("bias", [False, True])
    @pytest.mark.parametrize("dtype", KERNELS)
    def test_the_measured_classes_are_those_of_the_kernel(
        self, monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, bias: bool
    ) -> None:
        """The classes of these test kernels are known; some are ranges and some are not."""
        for name, class_of in KERNELS[dtype].items():
            monkeypatch.setattr(F, "linear", linear_by(class_of))
            for inputs, outputs in ((32, 32), (48, 16), (20, 288), (129, 8)):
                shape, expected = Shape(inputs, outputs, bias, dtype, 1), {}
                for number in tried(shape):
                    expected.setdefault(class_of(number), []).append(number)
                assert measure(shape) == list(expected.values()), (name, inputs, outputs)
                assert list(numbers_for(shape)) in expected.values()

    def test_a_number_whose_bits_depend_on_the_place_is_left_out(self) -> None:
        """The place may be in few rows or many, at the end, or at every second row."""
        weight, _, rows = samples(SHAPE)
        one, other = (linear_by(table(((n, n + 1000),))) for n in (1, 2000))

        def unlike(matters: Callable[[Tensor, int], Tensor]) -> list[int]:
            def kernel(x: Tensor) -> Tensor:
                matching = matters(torch.arange(len(x)), len(x))
                return torch.where(matching[:, None], other(x, weight), one(x, weight))

            equal = [n for members in alike(kernel, rows, NUMBERS) for n in members]
            return [number for number in NUMBERS if number not in equal]

        few = [2, 4, 8, 16, 24, 32, 48]
        assert unlike(lambda place, n: place < 0) == []
        assert unlike(lambda place, n: place % 2 == 1) == list(NUMBERS[1:])
        assert unlike(lambda place, n: place % 4 == 3) == list(NUMBERS[2:])
        assert unlike(lambda place, n: place % 8 == 0) == list(NUMBERS[1:])
        assert unlike(lambda place, n: place == n - 1) == list(NUMBERS[1:])
        assert unlike(lambda place, n: place >= n - n % 16) == [24]
        assert unlike(lambda place, n: (place > 0) & (place < 2) & (n < 49)) == few
        assert unlike(lambda place, n: (place >= 256) & (n == 384)) == [384]

    def test_one_row_is_always_usable(self) -> None:
        """So every machine has a choice."""
        _, _, rows = samples(SHAPE)
        classes = alike(lambda x: x + torch.arange(len(x))[:, None], rows, NUMBERS)
        assert classes == [[1]]
        assert choose(classes) == (1,)
        # The choice depends on the classes alone.
        assert choose([[1], [2, 4, 8], [16, 64, 512], [32, 128]]) == (16, 64, 512)
        assert choose([[1], [8], [64], [512]]) == (64,)

    def test_large_calls_are_not_tried_where_they_take_long(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        shape = Shape(32, 24, False, torch.bfloat16, 1)
        for computes, most in ((True, 512), (False, 32)):
            monkeypatch.setattr(
                "minise.lab.equal_bits.probe.computes_16_bits", lambda c=computes: c
            )
            assert max(tried(shape)) == most
        assert max(tried(Shape(32000, 32000, False, torch.float32, 1))) == 32
        assert max(tried(Shape(1024, 1024, False, torch.float32, 1))) == 2048
