"""Which numbers of rows share their bits on this machine: measured, for each linear layer.

Two numbers of rows are in one class if a row gets the same bits in a call of the one as in a call
of the other. Of all classes one is chosen by a fixed rule, not by the clock, so that two processes
on one machine never choose differently. Where no two numbers agree, one alone is used for all.

This is sound for any kernel that does the same whenever it is given the same shape, and does the
same to every row of a call. That a row's place does not matter is tried here, too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from minise.exact.calls import START, cost
from minise.exact.machine import computes_16_bits, remembered

NUMBERS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 160, 192, 224, 256, 320, 384, 448, 512)
LARGER = (768, 1024, 1280, 2048)  # also tried where they save time: for matrices of medium size
ROWS = 8  # different rows; a call repeats them
DISTINCT = 64  # different columns of a weight; a wider one repeats them
MOST = 1 << 33  # multiplications in one call of the probe
MEDIUM = range(1 << 18, 1 << 21)  # inputs times outputs
# The largest number of rows of 16-bit numbers on a CPU that has no instructions for them: there a
# row costs as much in a call of 32 as in one of 512, and a large call of the probe takes seconds.
SLOW = 32
# Of a call of the activation. Of more than 32,768, torch gives each thread a part, and the few last
# elements of each part other bits, because they fill no vector: each part must be of whole vectors.
ELEMENTS, EACH = (512, 4096, 32768), (32768, 262144)  # in all, and for each thread
TYPICAL = (1, 8, 40, 128, 512, 1024)  # numbers of rows that a choice must serve

Classes = list[list[int]]


@dataclass(frozen=True)
class Shape:
    """A linear layer: in_features, out_features, whether it has a bias, its dtype and the number
    of threads it runs with."""

    inputs: int
    outputs: int
    bias: bool
    dtype: torch.dtype
    threads: int

    def __str__(self) -> str:
        bias = " + bias" * self.bias
        name = str(self.dtype).removeprefix("torch.")
        return f"{name} {self.inputs} x {self.outputs}{bias}, threads {self.threads}"


_chosen: dict[tuple[object, ...], tuple[int, ...]] = {}


def numbers_for(shape: Shape) -> tuple[int, ...]:
    """The numbers of rows in which a layer of this shape is called. With another `F.linear` (a test
    puts in its place one that sums in its own way) they are found anew."""
    key = (F.linear, shape)
    if key not in _chosen:
        _chosen[key] = choose(classes_of(shape))
    return _chosen[key]


def elements_for(dtype: torch.dtype, threads: int) -> tuple[int, ...]:
    """The numbers of elements in which the activation is called."""
    key = (F.silu, dtype, threads)
    if key not in _chosen:
        generator = torch.Generator().manual_seed(0)
        values = 3 * torch.randn(509, generator=generator, dtype=torch.float64)
        with torch.inference_mode():
            numbers = sorted({*ELEMENTS, *(threads * each for each in EACH)})
            classes = alike(F.silu, values.to(dtype), numbers)
        _chosen[key] = max(map(tuple, classes), key=len, default=ELEMENTS[:1])
    return _chosen[key]


def classes_of(shape: Shape) -> Classes:
    """The classes of a shape, from the cache of this machine or else measured."""
    if F.linear is not torch._C._nn.linear:  # not torch's own: nothing is known of it
        return measure(shape)
    kept = remembered(str(shape), lambda: measure(shape))
    usable = kept and all(one and set(one) <= {*NUMBERS, *LARGER} for one in kept)
    return kept if usable else measure(shape)


@torch.inference_mode()
def measure(shape: Shape) -> Classes:
    """Call the kernel with each number of rows, and sort them by the bits that come out."""
    weight, bias, rows = samples(shape)
    return alike(lambda x: F.linear(x, weight, bias), rows, tried(shape))


def tried(shape: Shape) -> list[int]:
    """The numbers of rows that are tried for a shape: of one whose calls take long, the smaller
    ones."""
    most = max(2, MOST // (shape.inputs * shape.outputs))
    if shape.dtype.itemsize == 2 and not computes_16_bits():
        most = min(most, SLOW)
    numbers = NUMBERS + LARGER * (shape.inputs * shape.outputs in MEDIUM)
    return [number for number in numbers if number <= most]


def samples(shape: Shape) -> tuple[Tensor, Tensor | None, Tensor]:
    """A weight, a bias and ROWS rows on which another order of summation shows in any dtype.

    Every product occurs twice, with both signs, at random places. So each exact sum is 0, and what
    a kernel returns is what it rounded on the way: the last rounding cannot hide it. Sizes are
    spread over 12 powers of two, or in float32 the sums of bfloat16 products would be exact. In
    every second column one product is alone: two parts that cancel out are rounded alike, wherever
    a sum is parted. And of four biases two are 0: others hide what is small.
    """
    inputs, columns = shape.inputs, min(shape.outputs, DISTINCT)
    generator = torch.Generator().manual_seed(0)

    def spread(*size: int) -> Tensor:
        exponents = torch.randint(-6, 6, size, generator=generator)
        values = torch.randn(size, generator=generator, dtype=torch.float64)
        return (values * 2.0**exponents).to(shape.dtype)

    half = inputs // 2
    order = torch.randperm(2 * half, generator=generator)
    rows, weight = spread(ROWS, inputs), spread(columns, inputs)
    rows[:, order[half:]], weight[:, order[half:]] = rows[:, order[:half]], -weight[:, order[:half]]
    if inputs % 2:
        weight[:, -1] = 0
    weight[1::2, order[:1]] = 0
    bias = spread(shape.outputs) * (torch.arange(shape.outputs) // 2 % 2) if shape.bias else None
    weight = weight.repeat(-(-shape.outputs // columns), 1)[: shape.outputs]
    return weight.contiguous(), bias, rows


def alike(function: Callable[[Tensor], Tensor], rows: Tensor, numbers: Sequence[int]) -> Classes:
    """The numbers, sorted by what `function` makes of these rows in calls of them. A number for
    which a row's place in the call matters is left out."""
    classes: list[tuple[list[int], Tensor]] = []
    for number in numbers:
        # As many calls as all rows need: the few values of one row can be equal by chance. Where
        # the rows come again, each is one place further on.
        index = torch.arange(number * -(-len(rows) // number))
        place = (index + index // len(rows)) % len(rows)
        calls = [function(rows[call]) for call in place.split(number)]
        results = calls[0] if len(calls) == 1 else torch.cat(calls)
        first = results[: len(rows)].clone()  # of a large call only these are kept
        # A piece at a time: a large call's results are as large as a layer's weight.
        pieces = zip(results.split(len(rows)), place.split(len(rows)), strict=True)
        stays = all(torch.equal(piece, first[index]) for piece, index in pieces)
        if 1 < number <= len(rows):  # none comes again in a call
            turned = (torch.arange(number) + 1) % number
            stays = stays and torch.equal(function(rows[turned]), first[turned])
        if not stays:
            continue
        for members, bits in classes:
            if torch.equal(bits, first):
                members.append(number)
                break
        else:
            classes.append(([number], first))
    return [members for members, _ in classes]


def choose(classes: Classes) -> tuple[int, ...]:
    """The class in which typical numbers of rows cost least; of equal ones the first.

    >>> choose([[1], [2, 4, 8], [16, 64, 128, 512]]), choose([[1], [8], [64], [512]])
    ((16, 64, 128, 512), (64,))
    """

    def waste(numbers: tuple[int, ...]) -> float:
        return sum(cost(R, numbers) / (R + START) for R in TYPICAL)

    return min(map(tuple, classes), key=waste)
