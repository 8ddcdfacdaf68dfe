"""What `minise verify` prints: the numbers of a verification, for a person and as JSON."""

from __future__ import annotations

from typing import Any

import torch

from minise.exact import machine
from minise.verify.comparison import ABLATIONS, ENGINES
from minise.verify.traces import largest
from minise.verify.verify import FACTOR, SAME, Verification

YES = {True: "yes", False: "no"}


def as_json(result: Verification) -> dict[str, Any]:
    """The fields of `minise verify --json` after the model's name and dtype. Differences are
    absolute; `tolerance`, and the largest differences in `float64`, are parts of a row's size."""

    def numbers(name: str) -> dict[str, Any]:
        run = result.runs[name]
        *layers, labels, logits = run.absolute
        more = {"probabilities": run.probabilities, "changed": run.changed / run.prompts}
        return {"layers": layers, "logits": logits, "labels": labels, **more}

    influence = {"runs": result.influence.runs, "scrambled_equal": result.influence.equal}
    return {
        "tokens": result.tokens,
        "groups": result.groups,
        "tolerance": SAME,
        "passed": result.passed,
        "engines": {name: numbers(name) for name in ENGINES},
        "ablations": {name: numbers(name) for name in ABLATIONS},
        "float64": {name: largest(run.relative) for name, run in result.wide.items()},
        "same": {name: result.same(name) for name in result.runs},
        "bitwise": {name: result.runs[name].equal for name in ("dense", "tree")},
        "promised": result.promised,
        "influence": influence,
        "machine": result.machine,
    }


def as_text(model: str, dtype: str, result: Verification) -> str:
    """What was compared, a line for each run and its verdict, the influence, and the end."""
    device = result.machine["device"]
    place = in_words() if device == "cpu" else f"{device}, beside {in_words()}"
    some = next(iter(result.wide.values())).prompts
    lines = [
        f"{model}, {dtype}: {result.tokens:,} tokens of {result.groups} group prompts, "
        "packed against separate",
        f"on {place}",
        "",
        "The largest difference of a row from the separate runs, as a part of the row's size.",
        f"What decides is float64 ({some} prompts): {SAME:.0e} passes.",
        "",
        _row("", "layers", "logits", "labels", "changed", "equal bits", "float64", "verdict"),
    ]
    for name, run in result.runs.items():
        verdict = "the same" if result.same(name) else "different"
        changed = f"{run.changed / run.prompts:.0%}"
        decides = f"{largest(result.wide[name].relative):.1e}"
        shown = name.replace("_", " ")
        lines.append(_row(shown, *_parts(run.relative), changed, YES[run.equal], decides, verdict))
    if result.rounding is not None:
        allowed = [FACTOR * one for one in result.rounding.relative]
        lines.append(_row("rounding explains", *_parts(allowed)))
    lines += [
        "",
        f"Influence: {result.influence.runs} packed runs, in which random tokens replace all that "
        "a group must not see.",
        f"  Its hidden states stay equal bit for bit: {YES[result.influence.equal]}",
        "",
        _end(result),
    ]
    return "\n".join(line.rstrip() for line in lines)


def _row(name: str, *cells: str) -> str:
    return f"  {name:18}" + "".join(f"{cell:>11}" for cell in cells)


def _parts(relative: list[float]) -> tuple[str, str, str]:
    *layers, labels, logits = relative
    return f"{largest(layers):.1e}", f"{logits:.1e}", f"{labels:.1e}"


def _end(result: Verification) -> str:
    if result.failure is not None:
        return f"FAILED: {result.failure}"
    bits = "separate, dense and tree are equal bit for bit" if result.bitwise else "not equal bits"
    more = "" if result.promised else ", where they are not promised"
    return f"passed: {bits} on {result.place}{more}; no group sees another"


def in_words() -> str:
    """The facts about this machine on one line, with the number of threads."""
    versions = [f"torch {torch.__version__}", f"threads {torch.get_num_threads()}"]
    variables = [f"{name}={value}" for name, value in machine.environment().items()]
    return ", ".join([machine.processor(), machine.instructions(), *versions, *variables])
