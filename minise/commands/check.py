"""Check another's packed row: is it equal to separate runs, and if not, what is wrong?

FILE holds what was meant (the lengths of documents, or of a trunk and branches) and what a model is
given (position ids, a mask or cu_seqlens, labels), as .json, .safetensors or .npz: docs/check.md
lists the fields. The first wrong cell, position or label is said in words, with the known mistake
that explains it and how to mend it. Nothing is run.

With --logits, each prompt is run alone by --model and compared with them; if they differ, the known
mistake that gives these logits is named. Exit status 1 if the row is not equal.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

from minise.commands import options
from minise.commands.options import ModelRequest

EXAMPLE = "minise check row.json"


@dataclass(frozen=True)
class CheckRequest:
    """What to check. logits: the file of the row's logits, if numbers are compared. tolerance: None
    for that of their dtype."""

    model: ModelRequest
    file: Path
    logits: Path | None
    tolerance: float | None
    json: bool


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "file", type=Path, metavar="FILE", help="the row: .json, .safetensors, .npz"
    )
    options.add_model(parser, dtype="float64")
    logits = "the row's logits (T, V) by --model, to be compared: .safetensors (logits) or .npy"
    parser.add_argument("--logits", type=Path, metavar="FILE", help=logits)
    most = (
        "the largest difference of a row of logits that passes, as a part of its size (default: by "
        "the narrower dtype, from 1e-10 in float64 to 0.1 in bfloat16)"
    )
    parser.add_argument("--tolerance", type=float, metavar="X", help=most)


def request(args: argparse.Namespace) -> CheckRequest:
    options.check_tolerance(args.tolerance)
    model = options.filled(ModelRequest, args)
    return options.filled(CheckRequest, args, model=model)
