"""What `minise verify --proof` prints: what was proved for this question, and what is assumed."""

from __future__ import annotations

from dataclasses import asdict

from minise.checking.proof import ASSUMED, BY_CALLS, Proof
from minise.files import json_text


def as_json(model: str, proof: Proof) -> str:
    """The proof as a JSON object. first_differences: by engine, none if it passed."""
    fields = {
        "model": model,
        "tokens": proof.tokens,
        "groups": proof.branches,
        "layers": proof.layers,
        "passed": proof.passed,
        "rows": proof.rows,
        "first_differences": {one.engine: asdict(one) for one in proof.departures},
        "not_run": proof.not_run,
        "assumed": list(ASSUMED),
    }
    return json_text(fields)


def as_text(model: str, proof: Proof) -> str:
    """The same for a person."""
    failed = {one.engine for one in proof.departures}
    lines = [
        f"{model}: {proof.tokens:,} tokens of {proof.branches} group prompts, in {proof.layers} "
        "layers, run on symbols (no weights are read)",
        "",
    ]
    for engine, rows in proof.rows.items():
        same = "the operations and calls of a separate run" if engine in BY_CALLS else "as defined"
        shown = f"NOT {same}" if engine in failed else same
        lines.append(f"  {engine:10}{rows:>10,} rows  {shown}")
    lines += [f"  {engine:10}not run: {why}" for engine, why in proof.not_run.items()]
    lines.append("")
    if not proof.passed:
        return "\n".join([*lines, *(f"FAILED: {one}" for one in proof.departures)])
    calls, others = (
        " and ".join(engine for engine in proof.rows if (engine in BY_CALLS) == by_calls)
        for by_calls in (True, False)
    )
    return "\n".join(
        [
            *lines,
            f"proved for all weights of this shape: in exact arithmetic {others} compute each "
            "prompt as it is defined,",
            f"  alone, causal and within its windows; and the bits of {calls} are those of "
            "separate. Assumed (docs/proof.md):",
            *(f"  - {one}" for one in ASSUMED),
        ]
    )
