"""Compare packed runs with separate runs, token by token, and check that no group sees another.

It compares, for each engine, every hidden state of every token of every group prompt, its logits,
and the label logits that answers are read from. On a CPU the engines dense and tree must be equal
to separate runs bit for bit, by the numbers of rows that were measured on it (docs/bits.md); other
differences must be as small as rounding explains. A model in a narrower dtype is also run in
float64. Then every token that a group must not see is replaced by a random one: the group's numbers
must not change. Exit status 1 if a check fails.

With --proof no weights are read: the engines run on symbols instead of numbers, which shows for all
weights that packed and separate runs are the same operations (docs/proof.md). With --training the
gradients of a loss over packed prompts are compared with the sum over separate ones, in float64.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass

from minise.commands import options
from minise.commands.options import ModelRequest, QuestionRequest
from minise.errors import InputError
from minise.loading.names import AUTO

EXAMPLE = "minise verify --dtype float64 --trials 5"


@dataclass(frozen=True)
class VerifyRequest:
    """What to compare, and how strictly. tolerance: None for the bounds that rounding explains."""

    model: ModelRequest
    question: QuestionRequest
    tolerance: float | None
    require_bits: bool
    gradients: bool
    proof: bool
    training: bool
    json: bool


def add_options(parser: argparse.ArgumentParser) -> None:
    options.add_model(parser, dtype="float64")
    options.add_question(parser)
    most = (
        "the largest absolute difference that passes, for all numbers (default: a part of each "
        "row's size, 1e-10 in float64, else 6 times the model's own rounding, which is measured)"
    )
    parser.add_argument("--tolerance", type=float, metavar="X", help=most)
    bits = "fail without equal bits even where they are not promised, for example on a GPU"
    parser.add_argument("--require-bits", action="store_true", help=bits)
    slopes = "also check that a group's derivative by each token that it must not see is exactly 0"
    parser.add_argument("--gradients", action="store_true", help=slopes)
    proof = "instead prove for all weights, on symbols, that packed equals separate; reads none"
    parser.add_argument("--proof", action="store_true", help=proof)
    training = "instead compare the gradients of a packed loss with those of separate prompts"
    parser.add_argument("--training", action="store_true", help=training)


def request(args: argparse.Namespace) -> VerifyRequest:
    options.check_tolerance(args.tolerance)
    model = options.filled(ModelRequest, args)
    for option in ("--proof", "--training"):
        if getattr(args, option[2:]):
            _check_alone(option, args)
    question = options.question_request(args)
    return options.filled(VerifyRequest, args, model=model, question=question)


def _check_alone(option: str, args: argparse.Namespace) -> None:
    """Raise InputError for what has no meaning beside --proof or --training."""
    others = {
        "--tolerance": args.tolerance is not None,
        "--require-bits": args.require_bits,
        "--gradients": args.gradients,
    }
    if option == "--training":
        others["--proof"] = args.proof
        others["--quantize"] = args.quantize is not None
        others[f"--dtype {args.dtype}"] = args.dtype not in (AUTO, "float64")
    for other in (name for name, is_used in others.items() if is_used):
        raise InputError(f"{option} is a check of its own; leave {other} out, or {option}")
