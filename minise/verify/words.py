"""What `minise verify` prints: as text and as JSON."""

from __future__ import annotations

from typing import Any

import torch

from minise.loading.machine import environment, instructions, processor
from minise.verify.against import Held, dtype_name
from minise.verify.comparison import ABLATIONS, PACKED, Difference, Gaps
from minise.verify.verify import FACTOR, LATER, SAME, Verification

NOTHING_OUTSIDE = (
    "No definition of this decoder is known: it is compared with itself alone. Name one by "
    "--definition FILE.py:NAME."
)


def verification_json(result: Verification) -> dict[str, Any]:
    """The fields of `minise verify --json` after the model's name and dtype. Differences are
    absolute; `tolerance`, and the largest differences in `float64`, are parts of a row's size."""
    runs = result.runs
    in_float64 = {key(name): run.most for name, run in result.wide.items()}
    in_float64.pop("rounding", None)
    influenced = result.influence
    shown: dict[str, Any] = {
        "tokens": result.tokens,
        "groups": result.groups,
        "passed": result.passed,
        "tolerance": result.tolerance,
        "engines": {name: numbers(runs[name]) for name in PACKED},
        "ablations": {key(name): numbers(runs[name]) for name in ABLATIONS},
        "float64": in_float64,
        "same": {key(name): result.same(name) for name in runs},
        "influence": {"runs": influenced.pairs, "scrambled_equal": influenced.equal},
        "definition": None if not result.held else [held_json(held) for held in result.held],
        "machine": result.machine,
    }
    if result.equal_bits:
        shown["bitwise"] = {name: runs[name].equal for name in PACKED}
    return shown


def held_json(held: Held) -> dict[str, Any]:
    """How far a decoder is from the definition, in one dtype."""
    return {
        "dtype": dtype_name(held.dtype),
        "prompts": held.prompts,
        "limit": held.limit,
        "layers": held.layers,
        "parts": held.parts,
        "logits": held.logits,
        "first": None if held.passed else str(held.first),
    }


def key(name: str) -> str:
    """The name of a run in JSON."""
    return name.replace("-", "_")


def numbers(run: Difference) -> dict[str, Any]:
    largest = run.absolute
    return {
        "layers": largest.states.tolist() if has_states(largest) else [],
        "logits": float(largest.logits),
        "labels": float(largest.labels),
        "probabilities": float(run.probabilities),
        "changed": run.changed / run.pairs,
    }


def as_text(model: str, dtype: str, result: Verification) -> str:
    """What was compared, a line for each run and its verdict, the influence, and the end."""
    size = f"{result.tokens:,} tokens of {result.groups} group prompts"
    lines = [
        f"{model}, {dtype}: {size}",
        f"on {result.machine['device']}: {in_words()}",
        "",
        *against_definition(result),
        "",
        "Packed against separate: the largest difference of a row, as a part of the row's size.",
    ]
    if result.wide:
        pairs = result.wide["packed"].pairs
        passes = f"In float64 ({pairs} prompts) {SAME:.0e} passes"
        lines.append(f"{passes}; in another dtype {FACTOR} times")
        lines.append("the distance that rounding makes.")
    else:
        lines.append(f"{result.allowed:.1e} passes.")

    lines.append("")
    lines.append(line("", ["layers", "logits", "labels", "changed", "bits", "float64", "verdict"]))
    for name, run in result.runs.items():
        verdict = "the same" if result.same(name) else "different"
        if name == LATER:
            verdict = "rounding"
        wide = f"{result.wide[name].most:.1e}" if result.wide else "-"
        lines.append(line(name, [*cells(run), wide, verdict]))
    if "rounding" in result.wide:
        rounding = result.wide["rounding"]
        lines.append(line("rounding", [*cells(rounding), f"{rounding.most:.1e}", "allowed"]))

    runs = result.influence.pairs
    lines.append("")
    lines.append(f"Influence: in {runs} runs random tokens replace all that a group must not see.")
    answer = "yes" if result.influence.equal else "no"
    lines.append(f"  Its numbers stay equal bit for bit: {answer}")
    lines.append("")
    lines.append(verdict_of(result))
    return "\n".join(lines)


def against_definition(result: Verification) -> list[str]:
    """How far the decoder is from its definition, a line for each dtype."""
    if not result.held:
        return [NOTHING_OUTSIDE]
    lines = ["Against minise/definition.py, each prompt alone, part by part:"]
    for held in result.held:
        what = f"  {dtype_name(held.dtype)}, {held.prompts} prompts: off by at most {held.most:.1e}"
        lines.append(f"{what} of a row's size ({held.limit:.0e} passes)")
    return lines


def verdict_of(result: Verification) -> str:
    """The last line. It claims no more than was compared."""
    if not result.passed:
        return f"FAILED: {result.failure}"
    same = "equal bit for bit" if result.equal_bits else "the same"
    text = f"separate, packed and tree are {same}; no group sees another"
    if not result.held:
        return f"passed: {text}; the decoder itself was held against nothing"
    return f"passed: the decoder is its definition; {text}"


def cells(run: Difference) -> list[str]:
    """What stands in the columns layers, logits, labels, changed and bits."""
    largest = run.relative
    layers = "-"
    if has_states(largest):
        layers = f"{float(largest.states.max()):.1e}"
    logits = f"{float(largest.logits):.1e}"
    labels = f"{float(largest.labels):.1e}"
    changed = f"{run.changed / run.pairs:.0%}"
    bits = "equal" if run.equal else "differ"
    return [layers, logits, labels, changed, bits]


def has_states(gaps: Gaps) -> bool:
    """Whether states were compared: a decoder of another library shows none."""
    return gaps.states.dim() > 0


def line(name: str, values: list[str]) -> str:
    columns = [f"{value:>11}" for value in values]
    return f"  {name:18}{''.join(columns)}"


def in_words() -> str:
    """The facts about this machine on one line, with the number of threads."""
    versions = [f"torch {torch.__version__}", f"threads {torch.get_num_threads()}"]
    variables = [f"{name}={value}" for name, value in environment().items()]
    return ", ".join([processor(), instructions(), *versions, *variables])
