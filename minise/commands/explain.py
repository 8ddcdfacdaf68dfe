"""Write a page that explains how one question is answered: groups, mask, equality, attention.

It is one HTML file that needs no network. With no question, a built-in one is explained.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from minise.commands import options
from minise.errors import printable

if TYPE_CHECKING:
    from minise.explaining.data import Data

EXAMPLE = "minise explain --trials 5 --output page.html --figure mask.svg"


def add_options(parser: argparse.ArgumentParser) -> None:
    add = options.group(parser, "question").add_argument
    add("--question", metavar="TEXT", help="the question; choices by --choice")
    add("--choice", metavar="TEXT", action="append", help="a choice; once for each")
    options.add_question(parser)
    options.add_model(parser, dtype="float32")
    parser.set_defaults(attention="eager")  # of another library's model: the way that tells it
    add = options.group(parser, "output").add_argument
    where = "the page to write (default: page.html)"
    add("-o", "--output", type=Path, default=Path("page.html"), metavar="FILE", help=where)
    picture = "also draw the first trial's packed sequence and mask, as SVG"
    add("--figure", type=Path, metavar="FILE.svg", help=picture)
    heads = (
        "full: every head's attention; low: their mean (default: full where it stays below 5 MB)"
    )
    add("--detail", choices=("low", "full"), help=heads)


def run(args: argparse.Namespace) -> int:
    from minise.explaining.page import explain

    question = options.read_question(args)
    options.check_output(args.output)
    options.check_output(args.figure, ".svg")
    options.check_groups(question, vars(args), args.seed)
    lm = options.load_model(args)
    settings = args.group_size, args.trials, args.seed, args.grouping, args.null_option, args.preset
    page = explain(lm, question, *settings, detail=args.detail)
    args.output.write_text(page.html, encoding="utf-8")
    if args.figure is not None:
        args.figure.write_text(page.figure, encoding="utf-8")
    told = as_json(args, page.data)
    print(json.dumps(told) if args.json else printable(as_text(told)))
    return 0


def as_json(args: argparse.Namespace, data: Data) -> dict[str, Any]:
    """What was written, and what it shows."""
    return {
        "model": args.model,
        "question": data["question"],
        "output": str(args.output),
        "bytes": args.output.stat().st_size,
        "figure": None if args.figure is None else str(args.figure),
        "detail": data["detail"],
        "tokens": {"dense": len(data["packed"]["texts"]), "tree": len(data["tree"]["texts"])},
        "bitwise": {name: data["bitwise"].get(name) for name in ("dense", "tree")},
        "apart": {name: apart(data, name) for name in ("dense", "tree")},
        "prediction": data["self_ensemble"]["prediction"],
        "left_out": data["left_out"],
    }


def apart(data: Data, run: str) -> float | None:
    """The largest difference of a hidden state from the separate run's, as a part of its size."""
    import numpy as np

    found = data["equality"].get(run)
    return None if found is None else float(np.nanmax(found))


def as_text(told: dict[str, Any]) -> str:
    measured = [value for value in told["apart"].values() if value is not None]
    equal = "equal bit for bit" if measured else "not compared"
    if False in told["bitwise"].values():
        equal = f"hidden states differ by at most {max(measured):.1e} of their size"
    size, tokens = f"{told['bytes'] / 1e6:.2f} MB", f"{told['tokens']['dense']:,} packed tokens"
    lines = [f"{told['output']}: {size}, {tokens}, packed and separate {equal}"]
    lines += [told["figure"]] if told["figure"] else []
    return "\n".join([*lines, *told["left_out"]])
