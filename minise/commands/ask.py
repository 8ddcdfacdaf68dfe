"""Answer a question by Self-Ensemble; with no question, a built-in one."""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING, Any

from minise.commands import options
from minise.names import ENGINES

if TYPE_CHECKING:
    from minise.ensemble import Answer, Plan

EXAMPLE = 'minise ask --question "Which is a bird?" --choice wren --choice trout --choice oak'


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    options.add_model(parser, dtype="float32")
    options.add_question(parser)
    add("--question", metavar="TEXT", help="the question; choices by --choice")
    add("--choice", metavar="TEXT", action="append", help="a choice; once for each")
    both = ("self-ensemble", "standard")
    prompt = "standard: one prompt with all choices (default: self-ensemble)"
    add("--method", choices=both, default="self-ensemble", help=prompt)
    engines = "how the group prompts are run; the numbers are the same (default: tree)"
    add("--engine", choices=ENGINES, default="tree", help=engines)
    more = "print each choice's score and its standard error, and what each group's prompt said"
    add("--show-groups", action="store_true", help=more)


def run(args: argparse.Namespace) -> int:
    from minise.ensemble import Standard, label_logits

    question = options.read_question(args)
    lm = options.load_model(args)
    method = Standard(args.preset) if args.method == "standard" else options.self_ensemble(args)
    plan = method.plan(lm, question, args.seed)
    answer = method.answer(plan, label_logits(lm, plan, args.engine))
    if args.method == "standard":
        args.group_size, args.trials = len(question.choices), 1
    elif plan.groups.complete:
        args.trials = 0  # nothing was sampled
    names = ("model", "method", "engine", "group_size", "trials", "seed")
    told = as_json({name: getattr(args, name) for name in names}, plan, answer)
    if args.json:
        print(json.dumps(told))
    else:
        plain = "█".encode(sys.stdout.encoding or "ascii", "replace") == b"?"
        print(as_text(told, args.show_groups, "#" if plain else "█"))
    return 0


def as_json(settings: dict[str, Any], plan: Plan, answer: Answer) -> dict[str, Any]:
    """The JSON object of the contract, which begins with the settings."""
    from minise.engines import token_counts
    from minise.uncertainty import uncertainty

    known = uncertainty(plan.groups, answer)
    texts, errors = plan.question.choices, known.standard_errors
    spread = [None] * len(texts) if errors is None else errors.tolist()
    rows = zip(texts, answer.probabilities.tolist(), answer.scores.tolist(), spread, strict=True)
    return {
        **settings,
        "question": plan.question.text,
        "choices": [
            {"text": t, "probability": p, "score": s, "standard_error": e} for t, p, s, e in rows
        ],
        "prediction": answer.prediction,
        "lead": {"score": known.lead, "standard_error": known.lead_error},
        "balance": plan.groups.balance,
        "groups": [
            {"choices": list(g.choices), "probabilities": g.probabilities.tolist(), "null": g.null}
            for g in answer.groups
        ],
        "tokens": token_counts(plan.prefix, plan.branches),
    }


def as_text(told: dict[str, Any], show_groups: bool, block: str) -> str:
    """The JSON object for a person, with bars made of `block`."""
    texts = [choice["text"] for choice in told["choices"]]
    width = min(40, max(map(len, texts)))
    lines = [told["question"], ""]
    for index, choice in enumerate(told["choices"]):
        mark = ">" if index == told["prediction"] else " "
        p = choice["probability"]
        line = f"{mark} {choice['text']:<{width}}  {p:6.1%}  {block * round(30 * p)}"
        lines.append(line.rstrip())
    lines += ["", f"Answer: {texts[told['prediction']]}", "", *_cost_and_precision(told)]
    if show_groups:
        lines += ["", "scores:"]
        for choice in told["choices"]:
            error = choice["standard_error"]
            spread = "" if error is None else f", standard error {error:.4f}"
            lines.append(f"      {choice['text']} {choice['score']:.4f}{spread}")
        lines += ["", "groups:"]
        for number, group in enumerate(told["groups"], 1):
            pairs = zip(group["choices"], group["probabilities"], strict=True)
            shown = [f"{texts[choice]} {p:.1%}" for choice, p in pairs]
            shown += [] if group["null"] is None else [f"none of the above {group['null']:.1%}"]
            lines.append(f"{number:4}  {', '.join(shown)}")
    return "\n".join(lines)


def _cost_and_precision(told: dict[str, Any]) -> list[str]:
    """What was run, how many tokens it took, and how far the scores can be trusted."""
    tokens, trials = told["tokens"], told["trials"]
    if told["method"] == "standard":
        return [
            f"{told['model']}, standard inference: all {len(told['choices'])} choices in one "
            f"prompt of {tokens['separate']:,} tokens"
        ]
    drawn = f"{trials} trial{'s' * (trials > 1)}" if trials else "all orders"
    lead, error = told["lead"]["score"], told["lead"]["standard_error"]
    if error is None:
        known = "its standard error cannot be told from these trials"
    else:
        verb = "exceeds" if lead > error else "is within"
        known = f"the lead {verb} its standard error, {error:.3f}"
    return [
        f"{told['model']}, Self-Ensemble: {drawn} of groups of "
        f"{told['group_size']} = {len(told['groups'])} prompts",
        f"tokens: {tokens['separate']:,} as separate prompts, {tokens['dense']:,} packed, "
        f"{tokens['tree']:,} with common prefixes merged (this run: {told['engine']})",
        *([told["balance"]] if told["balance"] else []),
        f"precision: the first choice's score leads the next by {lead:.3f}; {known}",
    ]
