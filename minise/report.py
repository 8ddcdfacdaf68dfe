"""What `minise ask` and `minise verify` print, for machines and for people."""

from __future__ import annotations

from typing import Any

from minise.designs import design
from minise.ensemble import Answer, Plan, precision
from minise.layout import token_counts
from minise.verify import Difference, Report


def ask_report(settings: dict[str, Any], plan: Plan, answer: Answer) -> dict[str, Any]:
    """The JSON object of `minise ask`. `settings` begin it: model, method, engine, sizes, seed."""
    precise = precision(plan, answer)
    K = len(plan.question.choices)
    errors = [None] * K if precise.standard_errors is None else precise.standard_errors.tolist()
    return {
        **settings,
        "question": plan.question.text,
        "choices": [
            {"text": text, "probability": float(p), "score": float(score), "standard_error": error}
            for text, p, score, error in zip(
                plan.question.choices, answer.probabilities, answer.scores, errors, strict=True
            )
        ],
        "prediction": answer.prediction,
        "lead": {"score": precise.lead, "standard_error": precise.lead_error},
        "balance": _balance(plan),
        "groups": [
            {
                "choices": list(group.choices),
                "probabilities": group.probabilities.tolist(),
                "null": group.null,
            }
            for group in answer.groups
        ],
        "tokens": token_counts(plan.prompts.prefix, plan.prompts.branches),
    }


def _balance(plan: Plan) -> str | None:
    """How balanced a balanced grouping's partitions are, in words."""
    if plan.grouping != "balanced":
        return None
    K, m = len(plan.question.choices), max(map(len, plan.groups))
    return design(K, m, len(plan.groups) // -(-K // m)).balance


def ask_text(report: dict[str, Any], show_groups: bool, block: str) -> str:
    """The same for a person, with bars made of `block`."""
    texts = [choice["text"] for choice in report["choices"]]
    width = min(40, max(map(len, texts)))
    lines = [report["question"], ""]
    for index, choice in enumerate(report["choices"]):
        mark = ">" if index == report["prediction"] else " "
        bar = block * round(30 * choice["probability"])
        lines.append(
            f"{mark} {choice['text']:<{width}}  {choice['probability']:6.1%}  {bar}".rstrip()
        )
    lines += ["", f"Answer: {texts[report['prediction']]}", ""]
    tokens = report["tokens"]
    if report["method"] == "standard":
        lines.append(
            f"{report['model']}, standard inference: all {len(texts)} choices in one prompt "
            f"of {tokens['separate']:,} tokens"
        )
    else:
        trials = report["trials"]
        drawn = f"{trials} trial{'s' * (trials > 1)}" if trials else "all orders"
        lines.append(
            f"{report['model']}, Self-Ensemble: {drawn} of groups of "
            f"{report['group_size']} = {len(report['groups'])} prompts"
        )
        lines.append(
            f"tokens: {tokens['separate']:,} as separate prompts, {tokens['dense']:,} packed, "
            f"{tokens['tree']:,} with common prefixes merged (this run: {report['engine']})"
        )
        lead, error = report["lead"]["score"], report["lead"]["standard_error"]
        if report["balance"]:
            lines.append(report["balance"])
        if error is None:
            known = "its standard error cannot be told from these trials"
        else:
            verb = "exceeds" if lead > error else "is within"
            known = f"the lead {verb} its standard error, {error:.3f}"
        lines.append(f"precision: the first choice's score leads the next by {lead:.3f}; {known}")
    if show_groups:
        lines += ["", "scores:"]
        for text, choice in zip(texts, report["choices"], strict=True):
            error = choice["standard_error"]
            spread = "" if error is None else f", standard error {error:.4f}"
            lines.append(f"      {text} {choice['score']:.4f}{spread}")
        lines += ["", "groups:"]
        for number, group in enumerate(report["groups"], 1):
            shown = [
                f"{texts[choice]} {p:.1%}"
                for choice, p in zip(group["choices"], group["probabilities"], strict=True)
            ]
            shown += [] if group["null"] is None else [f"none of the above {group['null']:.1%}"]
            lines.append(f"{number:4}  {', '.join(shown)}")
    return "\n".join(lines)


def verify_report(model: str, dtype: str, report: Report) -> dict[str, Any]:
    """The JSON object of `minise verify`."""

    def numbers(difference: Difference) -> dict[str, Any]:
        return {
            "logits": difference.logits,
            "probabilities": difference.probabilities,
            "changed": difference.changed,
        }

    return {
        "model": model,
        "dtype": dtype,
        "tokens": report.tokens,
        "groups": report.groups,
        "tolerance": report.tolerance,
        "passed": report.passed,
        "engines": {name: {"layers": d.layers, **numbers(d)} for name, d in report.engines.items()},
        "ablations": {name: numbers(d) for name, d in report.ablations.items()},
    }


def verify_text(model: str, dtype: str, report: Report) -> str:
    """The same for a person: a row per layer, a column per engine and ablation, a verdict."""
    columns = {**report.engines, **report.ablations}
    names = [name.replace("_", " ") for name in columns]
    head = f"{'largest difference from':24}" + "".join(f"{name:>20}" for name in names)
    lines = [
        f"{model}, {dtype}: {report.tokens:,} tokens of {report.groups} group prompts, "
        "packed against separate",
        "",
        head,
        "the separate runs, in",
    ]

    def row(name: str, values: list[float], form: str = ".1e") -> str:
        return f"  {name:22}" + "".join(f"{value:>20{form}}" for value in values)

    differences = list(columns.values())
    *layers, _ = differences[0].layers
    for layer in range(len(layers)):
        lines.append(row(f"layer {layer}", [d.layers[layer] for d in differences]))
    lines.append(row("final norm", [d.layers[-1] for d in differences]))
    lines.append(row("logits", [d.logits for d in differences]))
    lines.append(row("probabilities", [d.probabilities for d in differences]))
    lines.append(row("groups decided anew", [d.changed for d in differences], ".1%"))
    engines_hold = all(d.within(report.tolerance) for d in report.engines.values())
    if not engines_hold:
        verdict = "FAILED: a packed run differs from the separate runs by more than"
    elif report.passed:
        verdict = "passed: packed and separate agree within"
    else:
        verdict = "FAILED: an ablation agrees too, so this question cannot show anything at"
    return "\n".join([*lines, "", f"{verdict} {report.tolerance:.1e}"])
