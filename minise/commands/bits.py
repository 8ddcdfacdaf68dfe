"""Show which numbers of rows share their bits on this machine, and what they cost.

The number of rows of a matrix product decides how it sums. For each linear layer of a model: which
numbers of rows give a row the same bits (a class), which of them minise uses, and how long a call
takes. Everything is measured anew; no weights are loaded.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass

from minise.bench.shapes import BENCHMARK, PUBLISHED, SHAPES
from minise.commands import options
from minise.errors import InputError
from minise.loading.names import DEFAULT_MODEL

EXAMPLE = "minise bits --dtype bfloat16"


@dataclass(frozen=True)
class BitsRequest:
    """Of which layers: those of a model, or of a shape, which goes before it."""

    model: str
    revision: str | None
    shape: str | None
    dtype: str
    threads: int | None
    json: bool


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    model = f"checkpoint folder or hub id, of which config.json is read (default: {DEFAULT_MODEL})"
    add("--model", metavar="PATH_OR_ID", help=model)
    add("--revision", help="branch, tag or commit of a hub id")
    shapes = f"a shape instead: {BENCHMARK}, or a published checkpoint's: {', '.join(PUBLISHED)}"
    add("--shape", choices=tuple(SHAPES), metavar="ID", help=shapes)
    options.add_dtype(parser)
    options.add_threads(parser)
    add("--json", action="store_true", help="print one JSON object instead")


def request(args: argparse.Namespace) -> BitsRequest:
    if args.model is not None and args.shape is not None:
        raise InputError("--model and --shape exclude each other; give one")
    if args.revision is not None and args.shape is not None:
        raise InputError("--revision is of a --model on the hub; leave it out with --shape")
    return options.filled(BitsRequest, args, model=args.model or DEFAULT_MODEL)
