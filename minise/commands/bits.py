"""Show which numbers of rows share their bits on this machine, and what they cost.

A matrix product chooses how it sums by the number of rows it is given. For each linear layer of a
model: which numbers of rows give a row the same bits (a class), which of them minise uses, and how
long a call takes. Everything is measured anew; no weights are loaded.
"""

from __future__ import annotations

import argparse
import json
from contextlib import closing

from minise.bench.shapes import BENCHMARK, PUBLISHED, SHAPES
from minise.commands import options
from minise.errors import InputError, printable
from minise.names import DEFAULT_MODEL

EXAMPLE = "minise bits --dtype bfloat16"


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    model = f"checkpoint folder or hub id, of which config.json is read (default: {DEFAULT_MODEL})"
    add("--model", metavar="PATH_OR_ID", help=model)
    add("--revision", help="branch, tag or commit of a hub id")
    shapes = f"instead: {BENCHMARK}, or a published checkpoint's: {', '.join(PUBLISHED)}"
    add("--shape", choices=tuple(SHAPES), metavar="ID", help=shapes)
    options.add_dtype(parser)
    options.add_threads(parser)
    add("--json", action="store_true", help="print one JSON object instead")


def run(args: argparse.Namespace) -> int:
    import torch

    from minise.bench.bits import measure_bits
    from minise.bench.measure import empty_decoder
    from minise.evaluation.progress import progress
    from minise.exact import machine
    from minise.exact.layers import shapes_of
    from minise.loading.config_json import config_from_dict, read_config
    from minise.loading.source import finder

    if args.model is not None and args.shape is not None:
        raise InputError("--model and --shape exclude each other; give one")
    if args.revision is not None and args.shape is not None:
        raise InputError("--revision is of a --model on the hub; leave it out with --shape")
    name = args.shape or args.model or DEFAULT_MODEL
    if args.shape is not None:
        config = config_from_dict(SHAPES[args.shape])
    else:
        config = read_config(finder(name, args.revision)("config.json"))
    decoder = empty_decoder(config, getattr(torch, args.dtype))
    options.set_threads(args, options.values_of(decoder))
    with closing(progress(shapes_of(decoder, decoder.dtype), "bits", "shape")) as shapes:
        found = [measure_bits(shape) for shape in shapes]
    about = {"shape" if args.shape else "model": name, "dtype": args.dtype}
    if args.json:
        told = about | machine.facts() | {"threads": torch.get_num_threads()}
        print(json.dumps(told | {"shapes": [one.as_json() for one in found]}))
        return 0
    lines = [
        f"{name}: {args.dtype}",
        machine.in_words(),
        "",
        "in x out: the numbers of rows that share their bits, as far as tried. *: in use.",
        "of a row: the time of a call for each of its rows, as a multiple of the largest call's.",
    ]
    print(printable("\n".join(lines + [f"\n{one.as_text()}" for one in found])))
    return 0
