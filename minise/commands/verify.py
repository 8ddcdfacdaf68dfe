"""Compare packed runs with separate runs, token by token, and show that groups are apart.

Every hidden state of every token of every group prompt, its logits, and the label logits as answers
read them, by each engine. On a CPU the engines dense and tree must be equal to separate runs bit
for bit, by the numbers of rows that were measured on it (docs/bits.md); what rounding may change
must be as close as it explains. A model in a narrower dtype runs in float64, too. Then every token
that a group must not see is replaced by a random one: the group must not notice. Exit status 1 if
it fails.

With --model transformers:FOLDER_OR_ID: does that library do what a 4-D mask and position ids say?
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from minise.commands import options
from minise.errors import InputError, printable

if TYPE_CHECKING:
    from minise.checking.comparison import Difference
    from minise.checking.verify import Verification

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
    bits = "fail without equal bits elsewhere than on a CPU, too, where none are promised"
    parser.add_argument("--require-bits", action="store_true", help=bits)
    slopes = "also check that a group's derivative by each token that it must not see is exactly 0"
    parser.add_argument("--gradients", action="store_true", help=slopes)


def run(args: argparse.Namespace) -> int:
    from minise.checking.verify import verify

    if args.tolerance is not None and not args.tolerance >= 0:
        raise InputError(f"--tolerance {args.tolerance} is below 0 or not a number")
    if args.require_bits and args.model.startswith("transformers:"):
        raise InputError(
            "--require-bits is for minise's own models; leave it out, or transformers:"
        )
    question = options.read_question(args)
    method = options.self_ensemble(args)
    options.check_groups(question, vars(args), args.seed)
    lm = options.load_model(args)
    plan = method.plan(lm, question, args.seed)
    if args.model.startswith("transformers:"):
        from minise.commands import library as command

        return command.verify_library(args, lm, plan)
    found = verify(lm, plan, args.tolerance, args.gradients, args.require_bits)
    told = as_json if args.json else as_text
    print(printable(told(args.model, args.dtype, found)))
    return 0 if found.passed else 1


def as_json(model: str, dtype: str, found: Verification) -> str:
    """The JSON object of the contract. Its differences are absolute."""

    def told(difference: Difference, *more: str) -> dict[str, Any]:
        names = (*more, "logits", "labels", "probabilities", "changed")
        return {name: getattr(difference, name) for name in names}

    seen = found.influence
    fields = {
        "model": model,
        "dtype": dtype,
        "tokens": found.tokens,
        "groups": found.groups,
        "tolerance": found.tolerance,
        "passed": found.passed,
        "engines": {name: told(d, "layers") for name, d in found.engines.items()},
        "float64": {name: told(d, "layers") for name, d in found.wide.items()},
        "ablations": {name: told(d) for name, d in found.ablations.items()},
        "bitwise": {name: found.engines[name].equal for name in ("dense", "tree")},
        "promised": found.promised,
        "influence": {
            "scrambled_equal": seen.scrambled.equal,
            "gradient_outside": seen.gradient_outside,
            "gradient_inside": seen.gradient_inside,
        },
        "machine": found.machine,
    }
    return json.dumps(fields)


def as_text(model: str, dtype: str, found: Verification) -> str:
    """The same for a person: what is judged, layer by layer, the certificate, and a verdict."""
    runs, bounds = {**found.engines, **found.ablations}, found.bounds
    differences, names = list(runs.values()), [name.replace("_", " ") for name in runs]

    def row(name: str, size: str, allowed: str, cells: Iterable[str]) -> str:
        widths = (max(len(name) + 3, 10) for name in names)
        told = "".join(f"{cell:>{width}}" for cell, width in zip(cells, widths))  # noqa: B905
        return f"  {name:22}{size:>16}{allowed:>9}{told}"

    layers = [*(f"layer {i}" for i in range(len(bounds.layers) - 1)), "final norm"]
    judged = zip(
        [*layers, "logits", "label logits"],
        [*found.sizes, found.sizes[-1]],
        bounds.listed,
        zip(*(bounds.judged(d) for d in differences), strict=True),
        strict=True,
    )
    probabilities = [f"{d.probabilities:.1e}" for d in differences]
    unit = "as a part of the row's size" if bounds.relative else "absolute"
    lines = [
        f"{model}, {dtype}: {found.tokens:,} tokens of {found.groups} group prompts, "
        "packed against separate",
        f"on {_place(found)}",
        "",
        f"The largest difference of a row from the separate runs, {unit}:",
        "",
        row("", "sizes of rows", "allowed", names),
        *(
            row(name, f"{least:.2g} to {most:.2g}", f"{bound:.1e}", (f"{x:.1e}" for x in values))
            for name, (least, most), bound, values in judged
        ),
        row("probabilities", "absolute", f"{bounds.probabilities:.1e}", probabilities),
        row("changed first choices", "", "", (f"{d.changed:.1%}" for d in differences)),
        row("equal bit for bit", "", "", (YES[d.equal] for d in differences)),
        *_in_float64(found, row),
        *_fewer(found),
        "",
        *_certificate(found),
        "",
        _verdict(found),
    ]
    return "\n".join(line.rstrip() for line in lines)


def _place(found: Verification) -> str:
    """The device, and all that decides how it rounds."""
    from minise.exact.machine import in_words

    device = found.machine["device"]
    return in_words() if device == "cpu" else f"{device}, beside {in_words()}"


def _in_float64(found: Verification, row: Callable[..., str]) -> list[str]:
    """The row of the runs in float64: the largest difference of all."""
    if not found.wide:
        return []
    bounds, runs = found.wide_bounds, found.wide.values()
    cells = (f"{max(bounds.judged(difference)):.1e}" for difference in runs)
    prompts = f"{next(iter(runs)).prompts} prompts"
    return [row("all of it in float64", prompts, f"{max(bounds.listed):.1e}", cells)]


def _fewer(found: Verification) -> list[str]:
    """That the plain engine ran some of the prompts only."""
    if (prompts := found.engines["plain"].prompts) == found.groups:
        return []
    return ["", f"plain ran {prompts} of the prompts, because the scores of all would not fit."]


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
    device = str(found.machine["device"])
    place = found.machine["cpu"] if device == "cpu" else device
    if not found.engines_agree:
        return "FAILED: a packed run differs from the separate runs by more than is allowed"
    if not found.engines_agree_in_float64:
        return (
            "FAILED: in float64 a packed run differs from the separate runs by more than rounding"
        )
    if not found.bits_hold and found.promised:
        return (
            f"FAILED: bits differ, although the kernels of this machine give equal bits ({place})"
        )
    if not found.bits_hold:
        return f"FAILED: bits differ, and --require-bits is given (none are promised on {place})"
    if not found.ablations_differ:
        return "FAILED: this question shows nothing, because an ablation is within what is allowed"
    if not found.groups_are_apart:
        return "FAILED: a group depends on what it must not see"
    if not found.bitwise:
        return (
            "passed: packed and separate agree within what is allowed; equal bits are not promised "
            f"on {place}"
        )
    more = "" if found.promised else ", where it is not promised"
    return (
        f"passed: separate, dense and tree are equal bit for bit on {place}{more}; "
        "no group sees another"
    )
