"""What `minise verify --training` prints: how far packed gradients are from separate ones."""

from __future__ import annotations

from dataclasses import asdict

from minise.checking.training import MOST, Gradients
from minise.files import json_text


def as_json(model: str, found: Gradients) -> str:
    """The result as a JSON object. Differences are parts of a tensor's largest entry."""
    facts = asdict(found)
    groups = facts.pop("branches")
    passed = {"passed": found.passed, "tolerance": MOST}
    return json_text({"model": model, "groups": groups, **facts, **passed})


def as_text(model: str, found: Gradients) -> str:
    """The same for a person."""
    lines = [
        f"{model}, float64: the loss of {found.tokens:,} tokens of {found.branches} group prompts, "
        "each with a weight of its own,",
        f"and its derivative by {found.parameters} tensors, in one pass against one by one:",
        "",
    ]
    for engine, largest in found.largest.items():
        lines.append(
            f"  {engine:6} gradients differ by at most {largest:.1e} of the tensor's largest "
            f"(in {found.worst[engine]}), the loss by {found.losses[engine]:.1e}"
        )
    verdict = f"passed: all within {MOST:.0e}"
    if not found.passed:
        verdict = f"FAILED: beyond {MOST:.0e}, a packed pass does not train as its prompts do"
    return "\n".join([*lines, "", verdict])
