"""Compare the packed pass with separate runs, token by token, and show that groups are apart.

Every hidden state of every token of every group prompt in the packed pass is compared with a
separate run of that prompt. On a CPU they are equal bit for bit. Then every token that a group must
not see is replaced by a random one: the group must not notice. Exit status 1 if it fails.

With --model transformers:FOLDER_OR_ID: does that library do what a 4-D mask and position ids say?
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from minise.commands import options
from minise.errors import InputError, printable

if TYPE_CHECKING:
    from minise.verify import Difference, Verification

EXAMPLE = "minise verify --dtype float64 --trials 5"
YES = {True: "yes", False: "no"}


def add_options(parser: argparse.ArgumentParser) -> None:
    options.add_model(parser, dtype="float64")
    options.add_question(parser)
    most = (
        "the largest absolute difference that passes, of anything (default: as a part of each "
        "row's size, 1e-10 in float64, else 6 times the model's own rounding, which is measured)"
    )
    parser.add_argument("--tolerance", type=float, metavar="X", help=most)
    slopes = "also check that a group's derivative by each token that it must not see is exactly 0"
    parser.add_argument("--gradients", action="store_true", help=slopes)


def run(args: argparse.Namespace) -> int:
    from minise.verify import verify

    if args.tolerance is not None and not args.tolerance >= 0:
        raise InputError(f"--tolerance {args.tolerance} is below 0 or not a number")
    question = options.read_question(args)
    method = options.self_ensemble(args)
    options.check_groups(question, method, args.seed)
    lm = options.load_model(args)
    plan = method.plan(lm, question, args.seed)
    if args.model.startswith("transformers:"):
        from minise.bridges import command

        return command.verify_library(args, lm, plan)
    found = verify(lm, plan, args.tolerance, args.gradients)
    told = as_json if args.json else as_text
    print(printable(told(args.model, args.dtype, found)))
    return 0 if found.passed else 1


def as_json(model: str, dtype: str, found: Verification) -> str:
    """The JSON object of the contract. Its differences are absolute."""

    def told(difference: Difference, *more: str) -> dict[str, Any]:
        return {x: getattr(difference, x) for x in (*more, "logits", "probabilities", "changed")}

    seen = found.influence
    fields = {
        "model": model,
        "dtype": dtype,
        "tokens": found.tokens,
        "groups": found.groups,
        "tolerance": found.tolerance,
        "passed": found.passed,
        "engines": {name: told(d, "layers") for name, d in found.engines.items()},
        "ablations": {name: told(d) for name, d in found.ablations.items()},
        "bitwise": {name: d.equal for name, d in found.engines.items()},
        "influence": {
            "scrambled_equal": seen.scrambled.equal,
            "gradient_outside": seen.gradient_outside,
            "gradient_inside": seen.gradient_inside,
        },
    }
    return json.dumps(fields)


def as_text(model: str, dtype: str, found: Verification) -> str:
    """The same for a person: what is judged, layer by layer, the certificate, and a verdict."""
    runs, bounds = {**found.engines, **found.ablations}, found.bounds
    differences = list(runs.values())

    def row(name: str, size: str, allowed: str, cells: Iterable[str]) -> str:
        return f"  {name:22}{size:>16}{allowed:>9}" + "".join(f"{cell:>19}" for cell in cells)

    judged = zip(
        [*(f"layer {i}" for i in range(len(bounds.layers) - 1)), "final norm", "logits"],
        found.sizes,
        [*bounds.layers, bounds.logits],
        zip(*(bounds.judged(d) for d in differences), strict=True),
        strict=True,
    )
    probabilities = [f"{d.probabilities:.1e}" for d in differences]
    unit = "as a part of the row's size" if bounds.relative else "absolute"
    lines = [
        f"{model}, {dtype}: {found.tokens:,} tokens of {found.groups} group prompts, "
        "packed against separate",
        "",
        f"The largest difference of a row from the separate runs, {unit}:",
        "",
        row("", "sizes of rows", "allowed", (name.replace("_", " ") for name in runs)),
        *(
            row(name, f"{least:.2g} to {most:.2g}", f"{bound:.1e}", (f"{x:.1e}" for x in values))
            for name, (least, most), bound, values in judged
        ),
        row("probabilities", "absolute", f"{bounds.probabilities:.1e}", probabilities),
        row("changed first choices", "", "", (f"{d.changed:.1%}" for d in differences)),
        row("equal bit for bit", "", "", (YES[d.equal] for d in differences)),
        "",
        *_certificate(found),
        "",
        _verdict(found),
    ]
    return "\n".join(line.rstrip() for line in lines)


def _certificate(found: Verification) -> list[str]:
    """What the scrambled runs and the derivatives show, in words."""
    seen = found.influence
    if not seen.runs:
        return ["Influence: there is one group, so there is no other that it could depend on."]
    lines = [
        f"Influence: {seen.runs} packed runs, in which random tokens replace all that a group must "
        "not see.",
        f"  Its hidden states stay equal bit for bit: {YES[seen.scrambled.equal]}",
    ]
    if seen.gradient_outside is not None:
        numbers = ", ".join(map(str, seen.groups))
        lines += [
            f"Gradients of the last hidden state of groups {numbers}, by each token",
            f"  that the group must not see: at most {seen.gradient_outside:.1e} (must be 0)",
            f"  that it sees: at least {seen.gradient_inside:.1e} (must be above 0)",
        ]
    return lines


def _verdict(found: Verification) -> str:
    if not found.engines_agree:
        return "FAILED: a packed run differs from the separate runs by more than is allowed"
    if not found.ablations_differ:
        return "FAILED: this question shows nothing, because an ablation is within what is allowed"
    if not found.groups_are_apart:
        return "FAILED: a group depends on what it must not see"
    if not found.bitwise:
        return "passed: packed and separate agree within what is allowed, though not bit for bit"
    return "passed: packed and separate are equal bit for bit, and no group sees another"
