"""`minise verify`: what was compared, as a JSON object and for a person."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from minise.checking.comparison import Difference
from minise.checking.proof import prove
from minise.checking.training import check_gradients
from minise.checking.verify import Verification, verify
from minise.commands import verify_proof, verify_training
from minise.commands.model import load_model
from minise.commands.question import check_groups, read_question, self_ensemble
from minise.commands.verify import VerifyRequest
from minise.errors import painted, printable
from minise.exact import machine
from minise.files import json_text
from minise.loading.checkpoint import without_weights
from minise.method import Method
from minise.question import Question

YES = {True: "yes", False: "no"}


def run(request: VerifyRequest) -> int:
    question = read_question(request.question)
    method = self_ensemble(request.question)
    check_groups(question, request.question)
    if request.proof:
        return _prove(request, method, question)
    if request.training:
        return _train(request, method, question)
    loaded = load_model(request.model)
    lm, names = loaded.lm, (request.model.model, loaded.dtype)
    plan = method.plan(lm, question, request.question.seed)
    result = verify(lm, plan, request.tolerance, request.gradients, request.require_bits)
    return _print(
        (as_json if request.json else as_text)(*names, result), result.passed, request.json
    )


def _prove(request: VerifyRequest, method: Method, question: Question) -> int:
    lm = without_weights(request.model.model, request.model.revision)
    proof = prove(lm, method.plan(lm, question, request.question.seed))
    show = verify_proof.as_json if request.json else verify_proof.as_text
    return _print(show(request.model.model, proof), proof.passed, request.json)


def _train(request: VerifyRequest, method: Method, question: Question) -> int:
    lm = load_model(replace(request.model, dtype="float64")).lm
    found = check_gradients(lm, method.plan(lm, question, request.question.seed))
    show = verify_training.as_json if request.json else verify_training.as_text
    return _print(show(request.model.model, found), found.passed, request.json)


def _print(text: str, passed: bool, as_json: bool) -> int:
    """Print a report, the first word of its verdict in colour. Returns the exit status."""
    text = printable(text)
    if not as_json:
        colour = "green" if passed else "red"
        verdict = re.compile(r"^(passed|proved|FAILED)\b", re.MULTILINE)
        text = verdict.sub(lambda word: painted(word[0], colour), text)
    print(text)
    return 0 if passed else 1


def as_json(model: str, dtype: str, result: Verification) -> str:
    """The JSON object of the contract. Its differences are absolute."""

    def numbers(difference: Difference, *more: str) -> dict[str, Any]:
        names = (*more, "logits", "labels", "probabilities", "changed")
        return {name: getattr(difference, name) for name in names}

    influence = result.influence
    fields = {
        "model": model,
        "dtype": dtype,
        "tokens": result.tokens,
        "groups": result.groups,
        "tolerance": result.tolerance,
        "passed": result.passed,
        "engines": {name: numbers(d, "layers") for name, d in result.engines.items()},
        "float64": {name: numbers(d, "layers") for name, d in result.wide.items()},
        "ablations": {name: numbers(d) for name, d in result.ablations.items()},
        "bitwise": {name: result.engines[name].equal for name in ("dense", "tree")},
        "promised": result.promised,
        "influence": {
            "scrambled_equal": influence.scrambled.equal,
            "gradient_outside": influence.gradient_outside,
            "gradient_inside": influence.gradient_inside,
        },
        "machine": result.machine,
    }
    return json_text(fields)


def as_text(model: str, dtype: str, result: Verification) -> str:
    """The same for a person: what is judged, layer by layer, the certificate, and a verdict."""
    runs, bounds = {**result.engines, **result.ablations}, result.bounds
    differences, names = list(runs.values()), [name.replace("_", " ") for name in runs]

    def row(name: str, size: str, allowed: str, cells: Iterable[str]) -> str:
        widths = (max(len(name) + 3, 10) for name in names)
        columns = "".join(f"{cell:>{width}}" for cell, width in zip(cells, widths))  # noqa: B905
        return f"  {name:22}{size:>16}{allowed:>9}{columns}"

    layers = [*(f"layer {i}" for i in range(len(bounds.layers) - 1)), "final norm"]
    judged = zip(
        [*layers, "logits", "label logits"],
        [*result.sizes, result.sizes[-1]],
        bounds.listed,
        zip(*(bounds.judged(d) for d in differences), strict=True),
        strict=True,
    )
    probabilities = [f"{d.probabilities:.1e}" for d in differences]
    unit = "as a part of the row's size" if bounds.relative else "absolute"
    lines = [
        f"{model}, {dtype}: {result.tokens:,} tokens of {result.groups} group prompts, "
        "packed against separate",
        f"on {_place(result)}",
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
        *_in_float64(result, row),
        *_fewer(result),
        "",
        *_certificate(result),
        "",
        _verdict(result),
    ]
    return "\n".join(line.rstrip() for line in lines)


def _place(result: Verification) -> str:
    """The device, and all that decides how it rounds."""
    device, cpu = result.machine["device"], machine.in_words()
    return cpu if device == "cpu" else f"{device}, beside {cpu}"


def _in_float64(result: Verification, row: Callable[..., str]) -> list[str]:
    """The row of the runs in float64: the largest difference of all."""
    if not result.wide:
        return []
    bounds, runs = result.wide_bounds, result.wide.values()
    cells = (f"{max(bounds.judged(difference)):.1e}" for difference in runs)
    prompts = f"{next(iter(runs)).prompts} prompts"
    return [row("all of it in float64", prompts, f"{max(bounds.listed):.1e}", cells)]


def _fewer(result: Verification) -> list[str]:
    """That the plain engine ran some of the prompts only."""
    prompts = result.engines["plain"].prompts
    if prompts == result.groups:
        return []
    return ["", f"plain ran {prompts} of the prompts, because the scores of all would not fit."]


def _certificate(result: Verification) -> list[str]:
    """What the scrambled runs and the derivatives show, in words."""
    influence = result.influence
    if not influence.runs:
        return ["Influence: there is one group, so there is no other that it could depend on."]
    lines = [
        f"Influence: {influence.runs} packed runs, in which random tokens replace all that a group "
        "must not see.",
        f"  Its hidden states stay equal bit for bit: {YES[influence.scrambled.equal]}",
    ]
    if influence.gradient_outside is not None:
        numbers = ", ".join(map(str, influence.groups))
        lines += [
            f"Gradients of the last hidden state of groups {numbers}, by each token",
            f"  that the group must not see: at most {influence.gradient_outside:.1e} (must be 0)",
            f"  that it sees: at least {influence.gradient_inside:.1e} (must be above 0)",
        ]
    return lines


def _verdict(result: Verification) -> str:
    device = str(result.machine["device"])
    place = result.machine["cpu"] if device == "cpu" else device
    if not result.engines_agree:
        return "FAILED: a packed run differs from the separate runs by more than is allowed"
    if not result.engines_agree_in_float64:
        return (
            "FAILED: in float64 a packed run differs from the separate runs by more than rounding"
        )
    if not result.bits_hold and result.promised:
        return (
            f"FAILED: bits differ, although the kernels of this machine give equal bits ({place})"
        )
    if not result.bits_hold:
        return f"FAILED: bits differ, and --require-bits is given (none are promised on {place})"
    if not result.ablations_differ:
        return "FAILED: this question shows nothing, because an ablation is within what is allowed"
    if not result.groups_independent:
        return "FAILED: a group depends on what it must not see"
    if not result.bitwise:
        return (
            "passed: packed and separate agree within what is allowed; equal bits are not promised "
            f"on {place}"
        )
    more = "" if result.promised else ", where it is not promised"
    return (
        f"passed: separate, dense and tree are equal bit for bit on {place}{more}; "
        "no group sees another"
    )
