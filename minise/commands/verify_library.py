"""What `minise verify --model transformers:FOLDER_OR_ID` prints about another library's model."""

from __future__ import annotations

from minise.bridges.promises import Report
from minise.files import json_text

YES = {True: "yes", False: "no", None: "cannot be told"}


def as_json(model: str, dtype: str, report: Report) -> str:
    """The report as a JSON object. The differences are parts of a row's size."""
    influence = report.influence
    engines = {}
    for name, result in report.engines.items():
        engines[name] = {"refused": result} if isinstance(result, str) else result
    fields = {
        "model": model,
        "dtype": dtype,
        "library": report.library,
        "attention": report.attention,
        "tokens": report.tokens,
        "groups": report.groups,
        "tolerance": report.tolerance,
        "passed": report.passed,
        "promises": {name: vars(promise) for name, promise in report.promises.items()},
        "documents_by_positions": report.documents,
        "engines": engines,
        "influence": {
            "scrambled_equal": influence.scrambled.equal if influence.runs else None,
            "gradient_outside": influence.gradient_outside,
            "gradient_inside": influence.gradient_inside,
        },
    }
    return json_text(fields)


def as_text(model: str, dtype: str, report: Report) -> str:
    """The same for a person."""
    lines = [
        f"{model}, {dtype}, {report.library}, attention {report.attention}: {report.tokens:,} "
        f"tokens of {report.groups} group prompts",
        "",
        f"  {'promise':12}{'holds':16}{'difference':>12}   (rounding: {report.tolerance:.1e})",
    ]
    for name, promise in report.promises.items():
        difference = "" if promise.difference is None else f"{promise.difference:.1e}"
        lines.append(f"  {name:12}{YES[promise.holds]:16}{difference:>12}   {promise.why}")
    parted = "positions that start over part documents, without a mask"
    lines += ["", f"  {parted}: {YES[report.documents]}", ""]
    for name, result in report.engines.items():
        if isinstance(result, str):
            lines.append(f"  engine {name}: {result}")
        else:
            exact = "equal to separate but for rounding" if result["exact"] else "NOT equal"
            lines.append(f"  engine {name}: {exact}, {result['relative']:.1e}")
    if report.influence.gradient_outside is not None:
        lines += [
            "",
            "Gradients of a group's logits, by each token",
            f"  that the mask hides: at most {report.influence.gradient_outside:.1e} (must be 0)",
            f"  that it shows: at least {report.influence.gradient_inside:.1e} (must be above 0)",
        ]
    broken = [name for name, promise in report.promises.items() if promise.holds is False]
    verdict = f"FAILED: {', '.join(broken)}" if broken else "passed: no promise is broken"
    return "\n".join(line.rstrip() for line in [*lines, "", verdict])
