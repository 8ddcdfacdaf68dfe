"""Which numbers of rows share their bits on this machine, and what a call of each costs."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch.utils.benchmark import Timer

from minise.lab.equal_bits.probe import Shape, choose, measure, samples, tried
from minise.model import Decoder

CALLS = 5  # of each number of rows; the result is their mean


@dataclass(frozen=True)
class Bits:
    """What was measured of a layer, without the file that is kept for this machine. classes: those
    numbers of rows that share their bits. A number that was tried and is in no class does not treat
    all rows of a call alike. chosen: the class in use. microseconds: of a call, by its number of
    rows."""

    layer: str
    classes: list[list[int]]
    chosen: tuple[int, ...]
    microseconds: dict[int, float]

    def __str__(self) -> str:
        """A line for each class: its numbers of rows, each with the microseconds of a call."""
        lines = [self.layer]
        for numbers in self.classes:
            cells = [f"{rows:,} ({self.microseconds[rows]:,.0f} us)" for rows in numbers]
            in_use = "  <- in use" if tuple(numbers) == self.chosen else ""
            lines.append(f"  {', '.join(cells)}{in_use}")
        return "\n".join(lines)


@torch.inference_mode()
def measure_bits(shape: Shape) -> Bits:
    """Measure anew which numbers of rows share their bits, and time a call of each."""
    weight, bias, rows = samples(shape)
    classes = measure(shape)
    microseconds = {}
    for number in tried(shape):
        x = rows[torch.arange(number) % len(rows)]
        given = {"linear": F.linear, "given": (x, weight, bias)}
        timer = Timer("linear(*given)", globals=given, num_threads=shape.threads)
        microseconds[number] = 1e6 * timer.timeit(CALLS).mean
    return Bits(str(shape), classes, choose(classes), microseconds)


def shapes_of(decoder: Decoder) -> list[Shape]:
    """The shapes of a decoder's linear layers and of its output matrix, each once."""
    dtype = decoder.dtype
    threads = torch.get_num_threads()
    shapes = []
    for name, module in decoder.model.layers[0].named_modules():
        if name.endswith("_proj"):
            layer = getattr(module, "layer", module)  # equal bits have the plain one inside
            has_bias = layer.bias is not None
            shapes.append(Shape(layer.in_features, layer.out_features, has_bias, dtype, threads))
    hidden_size, vocab_size = decoder.config.hidden_size, decoder.config.vocab_size
    shapes.append(Shape(hidden_size, vocab_size, False, dtype, threads))
    return list(dict.fromkeys(shapes))
