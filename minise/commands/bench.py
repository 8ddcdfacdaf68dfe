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
from minise.loading.plugin import load_extra

GENERATE = "generate"
MOST_ROUNDS = 1000
EXAMPLE = "minise bench --workload qasc --rounds 5"


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    prompts = "prompts; generate: write on after those of qasc (default: qasc)"
    add("--workload", choices=(*WORKLOADS, GENERATE), default="qasc", help=prompts)
    options.add_weights(parser)
    add("--model", metavar="PATH_OR_ID", help="a checkpoint's weights")
    shapes = f"a published checkpoint's shape with random weights: {', '.join(PUBLISHED)}"
    add("--shape", choices=tuple(PUBLISHED), metavar="ID", help=shapes)
    add("--random-weights", action="store_true", help="load none (always so without --model)")
    add("--rounds", type=int, default=5, metavar="R", help="runs of each, in turn (default: 5)")
    add("--seed", type=int, default=0, help="of prompts and groups (default: 0)")
    add("--no-peers", action="store_true", help="leave the reference library out")
    together = "also time questions of together at most T tokens in one pass of the engine tree"
    add("--tokens-per-pass", type=int, metavar="T", help=together)
    free = "also time the tree with linear layers in one call of all rows: what equal bits cost"
    add("--free-rows", action="store_true", help=free)
    grows = "also draw the cost as trials and choices grow; it says first how long that takes"
    add("--plot", type=Path, metavar="PNG", help=grows)


def run(args: argparse.Namespace) -> int:
    import torch

    from minise.bench import generating
    from minise.bench.measure import empty_decoder, random_model, time_engines
    from minise.bench.plot import plot_growth
    from minise.exact import machine
    from minise.loading.config_json import config_from_dict
    from minise.loading.placement import usable_device

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
    if args.model is not None:
        lm = options.load_model(args)
    else:
        shape = BENCH_SHAPE if args.shape is None else PUBLISHED[args.shape]
        dtype, device = getattr(torch, args.dtype), usable_device(args.device)
        empty = empty_decoder(config_from_dict(shape), dtype)
        options.set_threads(args, options.values_of(empty))
        lm = random_model(shape, dtype, device)
    about = {"workload": args.workload, "device": args.device, "dtype": args.dtype}
    about["machine"] = machine.facts() | {"threads": torch.get_num_threads()}
    weights = args.model or f"random weights, {args.shape or 'the benchmark shape'}"
    head = f"{args.workload}: {weights}, {args.dtype}, {args.device}, {args.rounds} rounds"
    settings = args.rounds, args.seed, not args.no_peers
    if args.workload == GENERATE:
        written = generating.time_generation(lm, WORKLOADS["qasc"], *settings)
        rows = {"rows": [asdict(row) for row in written]}
        print(json.dumps(about | rows) if args.json else printable(head))
        if not args.json:
            print(generating.as_text(written))
        return 0
    workload = WORKLOADS[args.workload]
    more = args.tokens_per_pass or 0, args.free_rows
    timings = time_engines(lm, workload, *settings, *more)
    if args.json:
        print(json.dumps(about | asdict(timings)))
    else:
        print(printable(head))
        print(timings.as_text())
    if args.plot is not None:
        plot_growth(lm, workload, args.seed, args.rounds, timings, args.plot)
        if not args.json:
            print(f"written: {printable(str(args.plot))}")
    return 0
