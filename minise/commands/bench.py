"""Time the engines and installed peers side by side.

The engines, and the reference library if it is installed, run on the same prompts and weights in
turn; by default on random weights of a small LLaMA shape.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

from minise.bench.shapes import PUBLISHED
from minise.bench.workloads import WORKLOADS
from minise.commands import options
from minise.errors import InputError, quote
from minise.loading.plugin import load_extra

GENERATE = "generate"
MOST_ROUNDS = 1000
EXAMPLE = "minise bench --workload qasc --rounds 5"


@dataclass(frozen=True)
class BenchRequest:
    """What to time. Without a model: random weights of a shape, None for the benchmark's."""

    workload: str
    model: str | None
    revision: str | None
    shape: str | None
    dtype: str
    device: str
    threads: int | None
    rounds: int
    seed: int
    peers: bool
    tokens_per_pass: int | None
    free_rows: bool
    plot: Path | None
    json: bool


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    prompts = "the prompts; generate: let the model continue those of qasc (default: qasc)"
    add("--workload", choices=(*WORKLOADS, GENERATE), default="qasc", help=prompts)
    options.add_weights(parser)
    add("--model", metavar="PATH_OR_ID", help="a checkpoint's weights")
    shapes = f"a published checkpoint's shape with random weights: {', '.join(PUBLISHED)}"
    add("--shape", choices=tuple(PUBLISHED), metavar="ID", help=shapes)
    drawn = "use random weights, as always without --model"
    add("--random-weights", action="store_true", help=drawn)
    add("--rounds", type=int, default=5, metavar="R", help="runs of each, in turn (default: 5)")
    add("--seed", type=int, default=0, help="seed of prompts and groups (default: 0)")
    alone = "leave the reference library out"
    add("--no-peers", dest="peers", action="store_false", help=alone)
    together = "also time the engine tree on several questions per pass, at most T tokens together"
    add("--tokens-per-pass", type=int, metavar="T", help=together)
    free = "also time the tree with linear layers in one call of all rows: what equal bits cost"
    add("--free-rows", action="store_true", help=free)
    grows = "also draw how the cost grows with trials and choices; says first how long that takes"
    add("--plot", type=Path, metavar="PNG", help=grows)


def request(args: argparse.Namespace) -> BenchRequest:
    _check(args)
    return options.filled(BenchRequest, args)


def _check(args: argparse.Namespace) -> None:
    """Raise InputError for options that exclude each other, and for numbers out of range."""
    if not 1 <= args.rounds <= MOST_ROUNDS:
        raise InputError(f"--rounds {quote(args.rounds)}; give 1 to {MOST_ROUNDS:,}")
    if args.tokens_per_pass is not None and args.tokens_per_pass < 1:
        raise InputError(f"--tokens-per-pass {quote(args.tokens_per_pass)} is below 1")
    if args.tokens_per_pass is not None and args.workload == GENERATE:
        raise InputError("--tokens-per-pass is of the engine tree; leave it out with generate")
    if args.free_rows and args.workload == GENERATE:
        raise InputError("--free-rows is of the engine tree; leave it out with generate")
    if args.model is not None and (args.shape is not None or args.random_weights):
        raise InputError("--model has weights; give it, or --shape and --random-weights")
    if args.revision is not None and args.model is None:
        raise InputError("--revision is of a --model on the hub; name one, or leave it out")
    if args.plot is not None and args.workload == GENERATE:
        raise InputError("--plot draws the engines; leave it out, or the workload generate")
    options.check_output(args.plot, ".png", ".pdf", ".svg")
    if args.plot is not None:
        load_extra("matplotlib", "bench")
