"""Which numbers of rows share their bits on this machine, and what a call of each costs."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch.utils.benchmark import Timer

from minise.equal_bits.probe import Shape, choose, measure, samples, tried
from minise.model import Decoder

CALLS = 5  # of each number of rows; the result is their mean


@torch.inference_mode()
def measure_bits(shape: Shape) -> dict[str, Any]:
    """classes: numbers of rows that share their bits, measured anew, without this machine's file;
    one that was tried and is in none does not treat all rows of a call alike. chosen: the class in
    use. microseconds: of a call of so many rows."""
    weight, bias, rows = samples(shape)
    classes = measure(shape)
    costs = {}
    for number in tried(shape):
        x = rows[torch.arange(number) % len(rows)]
        given = {"linear": F.linear, "given": (x, weight, bias)}
        timer = Timer("linear(*given)", globals=given, num_threads=shape.threads)
        costs[number] = 1e6 * timer.timeit(CALLS).mean
    chosen = choose(classes)
    return {"layer": str(shape), "classes": classes, "chosen": chosen, "microseconds": costs}


def as_lines(bits: dict[str, Any]) -> str:
    """A line for each class: its numbers of rows, each with the microseconds of a call."""
    lines = [bits["layer"]]
    for one in bits["classes"]:
        cells = [f"{rows:,} ({bits['microseconds'][rows]:,.0f} us)" for rows in one]
        in_use = "  <- in use" if tuple(one) == bits["chosen"] else ""
        lines.append(f"  {', '.join(cells)}{in_use}")
    return "\n".join(lines)


def shapes_of(decoder: Decoder) -> list[Shape]:
    """The shapes of a decoder's linear layers and of its output matrix, each once."""
    sizes = []
    for name, module in decoder.model.layers[0].named_modules():
        if name.endswith("_proj"):
            layer = getattr(module, "layer", module)  # equal bits have the plain one inside
            sizes.append((layer.in_features, layer.out_features, layer.bias is not None))
    sizes.append((decoder.config.hidden_size, decoder.config.vocab_size, False))
    threads = torch.get_num_threads()
    return [Shape(*size, decoder.dtype, threads) for size in dict.fromkeys(sizes)]
