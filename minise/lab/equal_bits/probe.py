"""Which numbers of rows give the same bits on this machine: measured for each linear layer.

Two numbers of rows are in one class if a row gets the same bits in calls with either. A class is
chosen by a fixed rule, not by measured times: no two processes on a machine choose differently.

This is correct for any kernel that computes in the same way in all calls of one shape, and treats
all rows of a call alike, which is also tried here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from minise.lab.equal_bits.calls import START, cost
from minise.lab.equal_bits.remembered import remembered
from minise.loading.machine import instructions

NUMBERS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 160, 192, 224, 256, 320, 384, 448, 512)
LARGER = (768, 1024, 1280, 2048)  # tried for matrices of medium size, where they save time
ROWS = 8  # different rows; a call repeats them
DISTINCT = 64  # different columns of a weight; a wider weight repeats them
MOST_PRODUCTS = 1 << 35  # multiplications in one call of the probe, at most
MEDIUM = range(1 << 18, 1 << 21)  # values of a weight
MOST_WHERE_SLOW = 32  # rows that are tried in 16 bits on a CPU without instructions for these
# Numbers of elements in a call of the activation. Of more than 32,768 torch gives each thread a
# part, which must consist of whole vectors.
ELEMENTS = (512, 4096, 32768)
ELEMENTS_OF_A_THREAD = (32768, 262144)
TYPICAL = (1, 8, 40, 128, 512, 1024)  # numbers of rows that a choice must serve

Classes = list[list[int]]


@dataclass(frozen=True)
class Shape:
    """A linear layer, its dtype and the number of threads it runs with."""

    inputs: int
    outputs: int
    bias: bool
    dtype: torch.dtype
    threads: int

    def __str__(self) -> str:
        dtype = str(self.dtype).removeprefix("torch.")
        bias = " + bias" if self.bias else ""
        return f"{dtype} {self.inputs} x {self.outputs}{bias}, threads {self.threads}"


_chosen: dict[tuple[object, ...], tuple[int, ...]] = {}


def numbers_for(shape: Shape) -> tuple[int, ...]:
    """The numbers of rows with which a layer of this shape is called, by this `F.linear`."""
    key = (F.linear, shape)
    if key not in _chosen:
        if F.linear is torch._C._nn.linear:
            classes = remembered(str(shape), partial(measure, shape))
        else:  # one that a test or a proof has put in its place
            classes = measure(shape)
        _chosen[key] = choose(classes)
    return _chosen[key]


def elements_for(dtype: torch.dtype, threads: int) -> tuple[int, ...]:
    """The numbers of elements with which the activation is called."""
    key = (F.silu, dtype, threads)
    if key not in _chosen:
        numbers = {*ELEMENTS}
        for number in ELEMENTS_OF_A_THREAD:
            numbers.add(threads * number)
        values = torch.linspace(-7, 9, 509, dtype=torch.float64).to(dtype)
        with torch.inference_mode():
            classes = alike(F.silu, values, sorted(numbers))
        largest = max(classes, key=len, default=[ELEMENTS[0]])
        _chosen[key] = tuple(largest)
    return _chosen[key]


@torch.inference_mode()
def measure(shape: Shape) -> Classes:
    """The classes of a shape's numbers of rows."""
    weight, bias, rows = samples(shape)
    return alike(lambda x: F.linear(x, weight, bias), rows, tried(shape))


def tried(shape: Shape) -> list[int]:
    """The numbers of rows that are tried for a shape; the smaller ones where calls take long."""
    values = shape.inputs * shape.outputs
    most = max(2, MOST_PRODUCTS // values)
    if shape.dtype.itemsize == 2 and not computes_16_bits():
        most = min(most, MOST_WHERE_SLOW)
    numbers = [*NUMBERS]
    if values in MEDIUM:
        numbers += LARGER
    return [number for number in numbers if number <= most]


def samples(shape: Shape) -> tuple[Tensor, Tensor | None, Tensor]:
    """A weight, a bias and ROWS rows that show another order of summation in any dtype.

    Every product occurs twice, with both signs, at random places: a kernel returns the sum of its
    rounding errors. Sizes are spread over 12 powers of two; otherwise sums of bfloat16 products
    would be exact in float32. In every second column one product has no partner: halves that cancel
    out are rounded alike wherever the sum is split. Half the biases are 0: others hide small sums.
    """
    inputs = shape.inputs
    columns = min(shape.outputs, DISTINCT)
    generator = torch.Generator().manual_seed(0)

    def spread(*size: int) -> Tensor:
        exponents = torch.randint(-6, 6, size, generator=generator)
        values = torch.randn(size, generator=generator, dtype=torch.float64)
        return (values * 2.0**exponents).to(shape.dtype)

    half = inputs // 2
    order = torch.randperm(2 * half, generator=generator)
    first, second = order[:half], order[half:]
    rows = spread(ROWS, inputs)
    weight = spread(columns, inputs)
    rows[:, second] = rows[:, first]
    weight[:, second] = -weight[:, first]
    if inputs % 2:
        weight[:, -1] = 0
    weight[1::2, order[:1]] = 0
    bias = None
    if shape.bias:
        is_kept = torch.arange(shape.outputs) // 2 % 2
        bias = spread(shape.outputs) * is_kept
    repeats = -(-shape.outputs // columns)  # rounded up
    weight = weight.repeat(repeats, 1)[: shape.outputs]
    return weight.contiguous(), bias, rows


def alike(function: Callable[[Tensor], Tensor], rows: Tensor, numbers: Sequence[int]) -> Classes:
    """The numbers in classes: `function` gives these rows the same bits in calls with any number of
    a class. A number for which a row's place in the call makes a difference is left out."""
    classes: Classes = []
    bits_of_class: list[Tensor] = []
    for number in numbers:
        bits = bits_wherever_placed(function, rows, number)
        if bits is None:
            continue
        for members, bits_of_members in zip(classes, bits_of_class, strict=True):
            if torch.equal(bits_of_members, bits):
                members.append(number)
                break
        else:
            classes.append([number])
            bits_of_class.append(bits)
    return classes


def bits_wherever_placed(
    function: Callable[[Tensor], Tensor], rows: Tensor, number: int
) -> Tensor | None:
    """What `function` gives for each row in calls of `number` rows; None where it depends on the
    row's place in the call."""
    count = len(rows)
    # As many calls as all rows need: the few values of one row can be equal by chance. When the
    # rows are repeated, each is one place further on.
    calls = -(-count // number)  # rounded up
    index = torch.arange(calls * number)
    row_of_place = (index + index // count) % count
    outputs = [function(rows[call]) for call in row_of_place.split(number)]
    results = outputs[0] if len(outputs) == 1 else torch.cat(outputs)
    bits = results[:count].clone()  # the rest of a large call is not kept in memory
    # One piece at a time: the results of a large call are as large as a layer's weight.
    pieces = zip(results.split(count), row_of_place.split(count), strict=True)
    for piece, which in pieces:
        if not torch.equal(piece, bits[which]):
            return None
    if 1 < number <= count:  # no row is repeated within a call
        rotated = (torch.arange(number) + 1) % number
        if not torch.equal(function(rows[rotated]), bits[rotated]):
            return None
    return bits


def choose(classes: Classes) -> tuple[int, ...]:
    """The class in which typical numbers of rows cost least; the first of equal ones."""
    waste = []
    for numbers in classes:
        waste.append(sum(cost(R, numbers) / (R + START) for R in TYPICAL))
    return tuple(classes[waste.index(min(waste))])


def computes_16_bits() -> bool:
    """Whether this CPU computes with bfloat16 and float16, and does not only store them."""
    return instructions() != "AVX2"
