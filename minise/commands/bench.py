"""Time the engines and installed peers side by side.

The engines, and the reference library if it is installed, run on the same prompts and weights in
turn; by default on random weights of a small LLaMA shape.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path

from minise.bench.shapes import BENCH_SHAPE, PUBLISHED
from minise.bench.workloads import WORKLOADS
from minise.commands import options
from minise.errors import InputError, printable, quote

MOST_ROUNDS = 1000
EXAMPLE = "minise bench --workload qasc --rounds 5"


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--workload", choices=tuple(WORKLOADS), default="qasc", help="prompts (default: qasc)")
    options.add_weights(parser, dtype="float32")
    add("--model", metavar="PATH_OR_ID", help="a checkpoint's weights")
    shapes = f"a published checkpoint's shape with random weights: {', '.join(PUBLISHED)}"
    add("--shape", choices=tuple(PUBLISHED), metavar="ID", help=shapes)
    add("--random-weights", action="store_true", help="load none (always so without --model)")
    add("--rounds", type=int, default=5, metavar="R", help="runs of each, in turn (default: 5)")
    add("--seed", type=int, default=0, help="of prompts and groups (default: 0)")
    add("--no-peers", action="store_true", help="leave the reference library out")
    add("--plot", type=Path, metavar="PNG", help="also draw the cost as trials and choices grow")


def run(args: argparse.Namespace) -> int:
    import torch

    from minise.bench.measure import random_model, time_engines
    from minise.bench.plot import plot_growth
    from minise.checkpoint import usable_device

    if not 1 <= args.rounds <= MOST_ROUNDS:
        raise InputError(f"--rounds {quote(args.rounds)}; give 1 to {MOST_ROUNDS:,}")
    if args.model is not None and (args.shape is not None or args.random_weights):
        raise InputError("--model has weights; give it, or --shape and --random-weights")
    if args.revision is not None and args.model is None:
        raise InputError("--revision is of a --model on the hub; name one, or leave it out")
    if args.plot is not None and not args.plot.absolute().parent.is_dir():
        raise InputError(f"{args.plot}: no such folder to write to")
    if args.plot is not None and args.plot.suffix.lower() not in (".png", ".pdf", ".svg"):
        raise InputError(f"{args.plot}: its ending names no picture; write .png, .pdf or .svg")
    if args.model is not None:
        lm = options.load_model(args)
    else:
        shape = BENCH_SHAPE if args.shape is None else PUBLISHED[args.shape]
        lm = random_model(shape, getattr(torch, args.dtype), usable_device(args.device))
        options.set_threads(args, lm)
    workload = WORKLOADS[args.workload]
    timings = time_engines(lm, workload, args.rounds, args.seed, not args.no_peers)
    if args.json:
        about = {"workload": args.workload, "device": args.device, "dtype": args.dtype}
        print(json.dumps(about | asdict(timings)))
    else:
        weights = args.model or f"random weights, {args.shape or 'the benchmark shape'}"
        head = f"{args.workload}: {weights}, {args.dtype}, {args.device}, {args.rounds} rounds"
        print(printable(head))
        print(timings.as_text())
    if args.plot is not None:
        plot_growth(lm, workload, args.seed, args.plot)
    return 0
