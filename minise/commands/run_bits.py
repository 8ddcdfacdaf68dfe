"""`minise bits`: measure each shape of the model's linear layers."""

from __future__ import annotations

from contextlib import closing

import torch

from minise.bench import bits
from minise.bench.measure import empty_decoder
from minise.bench.shapes import SHAPES
from minise.commands.bits import BitsRequest
from minise.commands.model import set_threads, values_of
from minise.config import Config
from minise.errors import printable
from minise.evaluation.progress import progress
from minise.exact import machine
from minise.exact.layers import shapes_of
from minise.files import json_text
from minise.loading.config_json import config_from_dict, read_config
from minise.loading.source import finder


def run(request: BitsRequest) -> int:
    decoder = empty_decoder(_config(request), getattr(torch, request.dtype))
    set_threads(request.threads, values_of(decoder))
    with closing(progress(shapes_of(decoder, decoder.dtype), "bits", "shape")) as shapes:
        results = [bits.measure_bits(shape) for shape in shapes]
    name = request.shape or request.model
    if request.json:
        about = {"model" if request.shape is None else "shape": name, "dtype": request.dtype}
        report = about | machine.facts_and_threads()
        print(json_text(report | {"shapes": [result.as_json() for result in results]}))
        return 0
    lines = [
        f"{name}: {request.dtype}",
        machine.in_words(),
        "",
        "in x out: the numbers of rows that share their bits, as far as tried. *: in use.",
        "of a row: the time of a call for each of its rows, as a multiple of the largest call's.",
    ]
    print(printable("\n".join(lines + [f"\n{result.as_text()}" for result in results])))
    return 0


def _config(request: BitsRequest) -> Config:
    if request.shape is not None:
        return config_from_dict(SHAPES[request.shape])
    return read_config(finder(request.model, request.revision)("config.json"))
