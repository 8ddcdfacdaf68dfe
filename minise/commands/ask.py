"""Answer a question by Self-Ensemble and, beside it, by standard inference.

With no question, a built-in one is asked.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from minise.commands import options
from minise.errors import InputError, printable, shorten
from minise.methods.registry import METHODS
from minise.names import DEFAULT_MODEL, ENGINES, LAYOUTS

if TYPE_CHECKING:
    from minise.engines import LanguageModel
    from minise.method import Answer, Group, Plan

EXAMPLE = 'minise ask --question "Which is a bird?" --choice wren --choice trout --choice oak'
NAMES = {"standard": "Standard inference", "self-ensemble": "Self-Ensemble"}
NAMES |= {"until-decided": "Self-Ensemble until decided"}
NAMES |= {"cot": "Chain of thought", "reasoning": "Reasoning"}
NAMES |= {"cot-ensemble": "Self-Ensemble after a chain of thought"}
GROUPED = ("self-ensemble", "until-decided", "cot-ensemble")  # others: one prompt, all choices
SETTINGS: tuple[str, ...] = ("group_size", "trials", "grouping", "null_option", "preset")
SETTINGS += ("max_new_tokens", "max_trials")
NULL_ROW = "none of the above"
# Accuracy on 5,000 questions of 8 choices, with weights/tiny-llama: docs/miniature.md.
HOW_OFTEN = (
    "The built-in question is the first evaluation question of the shipped world that standard\n"
    "inference gets wrong and Self-Ensemble right. Of 5,000 questions with 8 choices, standard\n"
    "inference answers 52.7% and Self-Ensemble 79.8% correctly (docs/miniature.md)."
)


def add_options(parser: argparse.ArgumentParser) -> None:
    add = options.group(parser, "question").add_argument
    add("--question", metavar="TEXT", help="the question; choices by --choice")
    add("--choice", metavar="TEXT", action="append", help="a choice; once for each")
    options.add_question(parser)
    add = options.group(parser, "method").add_argument
    about = "; ".join(f"{name}: {METHODS[name][1]}" for name in NAMES)
    about += "; settings in parentheses, as for minise eval (default: standard and self-ensemble, "
    add("--method", type=_method, metavar="NAME", help=f"{about}side by side)")
    options.add_until_decided(parser)
    options.add_budget(parser)
    engines = "how the group prompts are run; the same numbers, in plain within rounding"
    add("--engine", choices=ENGINES, default="tree", help=f"{engines} (default: tree)")
    options.add_model(parser, dtype="float32")
    options.add_dry_run(parser)
    add = options.group(parser, "output").add_argument
    more = "print each choice's score and its standard error, and what each group's prompt said"
    add("--show-groups", action="store_true", help=more)
    add("--show-prompts", action="store_true", help="print the text of each prompt")
    text = "print what the model writes, while it writes (cot, reasoning, cot-ensemble)"
    add("--show-reasoning", action="store_true", help=text)


def run(args: argparse.Namespace) -> int:
    from minise.loading.quantize import format_of
    from minise.methods.build import build_asking, make_variants
    from minise.rounds import run_plan

    question = options.read_question(args)
    settings = {name: getattr(args, name) for name in SETTINGS} | {"alpha": args.until_decided}
    named = [args.method] if args.method else ["self-ensemble", "standard"]
    named = options.until_decided(args, named)
    variants = make_variants(named, settings, args.engine)
    methods = {variant.method: build_asking(variant) for variant in variants}
    settings_of = {variant.method: variant.settings for variant in variants}
    for name in methods.keys() & set(GROUPED):
        options.check_groups(question, settings_of[name], args.seed)
    lm = options.load_model(args)
    if args.dry_run:
        from minise.commands import dry_run

        planned = {name: (method, args.engine) for name, method in methods.items()}
        counted = dry_run.count(lm, planned, [(args.seed, question)])
        return dry_run.show(args, lm, {"question": counted})
    told: dict[str, Any] = {}
    for name, method in methods.items():
        try:
            plan = method.plan(lm, question, args.seed)
            more = {"on_text": _show_piece} if args.show_reasoning and not args.json else {}
            plan, logits = run_plan(lm, method, plan, args.seed, args.engine, **more)
            answer = method.answer(plan, logits)
        except InputError as error:
            if not told:
                raise
            told["standard"] = {"left_out": str(error)}  # more choices than labels, for example
            break
        about = {"model": args.model, "method": name, "engine": args.engine}
        m, trials = len(question.choices), 1
        if name in GROUPED:
            m = settings_of[name]["group_size"]
            trials = 0 if plan.groups.complete else len(plan.groups.trials)
        about |= {"group_size": m, "trials": trials, "seed": args.seed}
        about |= {"dtype": args.dtype, "device": args.device, "quantize": format_of(lm.decoder)}
        one = as_json(lm, about, plan, answer)
        one |= method.notes(lm, plan, answer, args.seed) or {}
        if args.show_prompts:
            one["prompts"] = [lm.tokenizer.decode(plan.prefix + ids) for ids in plan.branches]
        told = {**told, "standard": one} if told else one
    if args.json:
        print(json.dumps(told))
    else:
        if args.show_reasoning and "reasoning" in told:
            print("\n")
        plain = "█".encode(sys.stdout.encoding or "ascii", "replace") == b"?"
        shown = question is options.QUESTION and args.model == DEFAULT_MODEL and not args.method
        shown = shown and args.until_decided is None
        note = ["", HOW_OFTEN] if shown else []
        print(printable(as_text(told, args.show_groups, "#" if plain else "█", note)))
    return 0


def as_json(
    lm: LanguageModel, settings: dict[str, Any], plan: Plan, answer: Answer
) -> dict[str, Any]:
    """The JSON object of the contract, which begins with the settings. `null`: the mean probability
    of "None of the above" over the prompts; `answer`: the index of the right choice, if known."""
    from minise.methods.uncertainty import uncertainty

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
        "answer": plan.question.answer,
        "lead": {"score": known.lead, "standard_error": known.lead_error},
        "null": _mean_null(answer.groups),
        "null_beside_prediction": _mean_null(
            [group for group in answer.groups if answer.prediction in group.choices]
        ),
        "balance": plan.groups.balance,
        "groups": [
            {"choices": list(g.choices), "probabilities": g.probabilities.tolist(), "null": g.null}
            for g in answer.groups
        ],
        "tokens": {name: plan.tokens(lm.counted_as(name)) for name in LAYOUTS},
    }


def _mean_null(groups: Sequence[Group]) -> float | None:
    """The weighted mean probability of the null option; None where it had no part."""
    if any(group.null is None for group in groups):
        return None
    total = sum(group.weight for group in groups)
    return sum(group.weight * (group.null or 0.0) for group in groups) / total


def as_text(told: dict[str, Any], show_groups: bool, block: str, note: Sequence[str] = ()) -> str:
    """The JSON object for a person, with bars made of `block`: a column for each method."""
    other = told.get("standard", {})
    asked = [told] if other.get("choices") is None else [other, told]
    texts, null = [choice["text"] for choice in told["choices"]], told["null"]
    width = min(40, max(map(len, [*texts, NULL_ROW][: len(texts) + (null is not None)])))
    bars = 30 if len(asked) == 1 else 16
    lines = [told["question"], ""]
    if len(asked) > 1:
        heads = "".join(f"{NAMES[one['method']]:<30}" for one in asked)
        lines.append(f"{'':{width + 6}}{heads}".rstrip())
    for index, text in enumerate(texts):
        line = f"  {text:<{width}}"
        for one in asked:
            mark = ">" if index == one["prediction"] else " "
            p = one["choices"][index]["probability"]
            line += f"  {mark} {p:6.1%}  {block * round(bars * p):<{bars}}  "
        lines.append(line.rstrip())
    if null is not None:
        gap = " " * (30 * (len(asked) - 1) + 4)
        lines.append(f"  {NULL_ROW:<{width}}{gap}{null:6.1%}  mean of the prompts, not in the 100%")
    for one in asked:
        lines += ["", *_answer(one), *map("  {}".format, _cost_and_precision(one))]
    if "left_out" in other:
        lines += ["", f"No standard inference: {other['left_out']}"]
    lines += ["", f"Model: {told['model']}", *note]
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
            shown += [] if group["null"] is None else [f"{NULL_ROW} {group['null']:.1%}"]
            lines.append(f"{number:4}  {', '.join(shown)}")
    for one in asked:
        for number, prompt in enumerate(one.get("prompts", ()), 1):
            of = f"{number} of {len(one['prompts'])}"
            lines += ["", f"--- {NAMES[one['method']]}, prompt {of} ---", prompt]
    return "\n".join(lines)


def _answer(told: dict[str, Any]) -> list[str]:
    """What the method answers, whether it is right, and that it rather means none of them."""
    predicted, right = told["prediction"], told["answer"]
    first, null = told["choices"][predicted], told["null_beside_prediction"]
    verdict = "" if right is None else f" ({'right' if predicted == right else 'wrong'})"
    lines = [f"{NAMES[told['method']]} answers: {first['text']}{verdict}"]
    if null is not None and null > 0.5:
        most = max(max(group["probabilities"]) for group in told["groups"])
        lines += [
            f"  The model says none of the above: it gives that {null:.1%} on average in the "
            "prompts that",
            f"  list {first['text']}. No choice got more than {most:.1%} in any prompt. The "
            "percentages above only rank them.",
        ]
    return lines


def _cost_and_precision(told: dict[str, Any]) -> list[str]:
    """What was run, how many tokens it took, and how far the scores can be trusted."""
    tokens, trials, choices = told["tokens"], told["trials"], told["choices"]
    wrote = _wrote(told) if "reasoning" in told else []
    if told["method"] not in GROUPED:
        cost = f"cost: 1 prompt with all {len(choices)} choices, {tokens['separate']:,} tokens"
        return [cost, *wrote]
    drawn = f"{trials} trial{'s' * (trials > 1)}" if trials else "all orders"
    prompts = f"{drawn} of groups of {told['group_size']} = {len(told['groups'])} prompts"
    if (rounds := told.get("rounds", 1)) > 1:
        prompts += f" in {rounds} rounds"
    lead, error = told["lead"]["score"], told["lead"]["standard_error"]
    first, second = sorted(choices, key=lambda choice: -choice["score"])[:2]
    ahead = (
        f"precision: in its prompts {first['text']} got {first['score']:.1%} on average, "
        f"{_points(lead)} percentage points more than the next, {second['text']}."
    )
    if error is None:
        known = "How much other groups could change that cannot be told from these trials."
    elif not trials:
        known = "Every group was asked, so chance has no part in it."
    else:
        known = f"Other random groups would change that by about {_points(error)}: the answer "
        known += "is stable." if lead > 2 * error else "may change; more --trials would tell."
    return [
        f"cost: {prompts},",
        f"  {tokens['separate']:,} tokens as separate prompts, {tokens['dense']:,} packed, "
        f"{tokens['tree']:,} with common prefixes merged (this run: {told['engine']})",
        *wrote,
        *([told["balance"] + " (in each round)" * (rounds > 1)] if told["balance"] else []),
        *([_decided(told)] if "decided" in told else [ahead, f"  {known}"]),
    ]


def _decided(told: dict[str, Any]) -> str:
    """Whether the answer is decided, after how many trials, and which choices are left."""
    texts = [choice["text"] for choice in told["choices"]]
    after = f"after {told['trials']} trials (of at most {told['max_trials']})"
    leads = f"{texts[told['prediction']]} leads by {told['lead']['score']:.2f}"
    if told["decided"]:
        return f"decided {after}: {leads}"
    left = ", ".join(texts[i] for i in told["rivals"])
    return f"undecided {after}: {leads}; it could still be {left}"


def _wrote(told: dict[str, Any]) -> list[str]:
    """How much the model wrote before, and which choice its text names."""
    cut = ", cut by the budget" if told["cut"] else ""
    said = told["said"]
    named = "names no choice" if said is None else f"names {told['choices'][said]['text']}"
    return [f"  of which it wrote {told['new_tokens']:,} itself{cut}; that text {named}"]


def _method(text: str) -> str:
    if (name := text.partition("(")[0].strip()) not in NAMES:
        known = ", ".join(NAMES)
        raise argparse.ArgumentTypeError(f"{shorten(name, 80)} is unknown; use one of {known}")
    return text


def _show_piece(_: int, piece: str) -> None:
    """What the model writes, with its lines as they are."""
    print("\n".join(map(printable, piece.split("\n"))), end="", flush=True)


def _points(share: float) -> str:
    """Percentage points, with one decimal, or one digit where that would be 0.0."""
    return f"{100 * share:.1f}" if share >= 0.0005 else f"{100 * share:.1g}"
