"""Compare the packed pass with separate runs, token by token.

Every hidden state of every token of every group prompt in the packed pass is compared with a
separate run of that prompt. Exit status 1 if they differ by more than the tolerance.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from minise.commands import options
from minise.errors import InputError

if TYPE_CHECKING:
    from minise.verify import Verification

EXAMPLE = "minise verify --dtype float64 --trials 5"


def add_options(parser: argparse.ArgumentParser) -> None:
    options.add_model(parser, dtype="float64")
    options.add_question(parser)
    largest = (
        "the largest absolute difference that passes (default: 1e-10 in float64, else 64 "
        "(float32) or 16 units of rounding at the size of the largest hidden state)"
    )
    parser.add_argument("--tolerance", type=float, metavar="X", help=largest)


def run(args: argparse.Namespace) -> int:
    from minise.verify import verify

    if args.tolerance is not None and not args.tolerance >= 0:
        raise InputError(f"--tolerance {args.tolerance} is below 0 or not a number")
    question = options.read_question(args)
    lm = options.load_model(args)
    found = verify(lm, options.self_ensemble(args).plan(lm, question, args.seed), args.tolerance)
    told = as_json if args.json else as_text
    print(told(args.model, args.dtype, found))
    return 0 if found.passed else 1


def as_json(model: str, dtype: str, found: Verification) -> str:
    """The JSON object of the contract."""
    fields: dict[str, Any] = asdict(found)
    engines, ablations = fields.pop("engines"), fields.pop("ablations")
    for difference in ablations.values():
        del difference["layers"]
    fields |= {"passed": found.passed, "engines": engines, "ablations": ablations}
    return json.dumps({"model": model, "dtype": dtype, **fields})


def as_text(model: str, dtype: str, found: Verification) -> str:
    """The same for a person: a row per layer, a column per engine and ablation, a verdict."""
    columns = {**found.engines, **found.ablations}
    differences = list(columns.values())

    def row(name: str, values: Iterable[float], form: str = ".1e") -> str:
        return f"  {name:22}" + "".join(f"{value:>20{form}}" for value in values)

    *layers, final = zip(*(d.layers for d in differences), strict=True)
    if not all(d.within(found.tolerance) for d in found.engines.values()):
        verdict = "FAILED: a packed run differs from the separate runs by more than"
    elif found.passed:
        verdict = "passed: packed and separate agree within"
    else:
        verdict = "FAILED: this question shows nothing, because an ablation agrees too, within"
    return "\n".join(
        [
            f"{model}, {dtype}: {found.tokens:,} tokens of {found.groups} group prompts, "
            "packed against separate",
            "",
            "largest difference from " + "".join(f"{x.replace('_', ' '):>20}" for x in columns),
            "the separate runs, in",
            *(row(f"layer {number}", values) for number, values in enumerate(layers)),
            row("final norm", final),
            row("logits", [d.logits for d in differences]),
            row("probabilities", [d.probabilities for d in differences]),
            row("changed first choices", [d.changed for d in differences], ".1%"),
            "",
            f"{verdict} {found.tolerance:.1e}",
        ]
    )
