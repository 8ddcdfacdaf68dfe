"""Answer a question by Self-Ensemble and, beside it, by standard inference.

Without a question, a built-in one is asked.

example: minise ask --question "Which is a bird?" --choice wren --choice trout --choice oak
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from minise.commands.options import GroupOptions, Option, QuestionOptions, load_model, read_question
from minise.errors import InputError, Unsuited, printable

if TYPE_CHECKING:
    from minise.engines import LanguageModel
    from minise.method import Answer, Group, Method, Plan
    from minise.question import Question

# Accuracy on 5,000 questions of 8 choices, with weights/tiny-llama: docs/miniature.md.
HOW_OFTEN = """
The built-in question is the first evaluation question of the shipped world that standard
inference gets wrong and Self-Ensemble right. Of 5,000 questions with 8 choices, standard
inference answers 52.7% and Self-Ensemble 79.8% correctly (docs/miniature.md)."""
TITLES = {"standard": "Standard inference", "self-ensemble": "Self-Ensemble"}
NULL_ROW = "none of the above"
NULL_NOTE = "mean over all prompts; not in the column's sum"


@dataclass(frozen=True, kw_only=True)
class Options(QuestionOptions, GroupOptions):
    method: Annotated[
        str | None, Option("cyclic, cot, './mine.py:Mine(x=1)'", "NAME[(settings)]")
    ] = None
    show_prompts: Annotated[bool, Option("print the text of each prompt")] = False
    json: Annotated[bool, Option("print one JSON object, of one method")] = False


@dataclass(frozen=True, eq=False)
class Asked:
    """What a method was asked, and its answer. prompts: their texts."""

    name: str
    plan: Plan
    answer: Answer
    prompts: list[str]

    @property
    def title(self) -> str:
        return TITLES.get(self.name, self.name)


def run(options: Options) -> int:
    question = read_question(options)
    methods = choose_methods(options)
    lm = load_model(options)
    asked, notes = [], []
    for name, method in methods.items():
        try:
            asked.append(ask(lm, name, method, question, options))
        except Unsuited as error:  # more choices than labels, for example
            if name != "standard" or len(methods) == 1:
                raise
            notes = ["", f"No standard inference: {error}"]
    if options.json:
        print(json.dumps(as_json(asked[-1], options)))
        return 0
    dtype = str(lm.decoder.dtype).removeprefix("torch.")
    notes += ["", f"Model: {options.model}, {dtype} on {lm.decoder.device}"]
    if options == Options():
        notes.append(HOW_OFTEN)
    print("\n".join([*table(asked), *map(printable, [*explained(asked, options), *notes])]))
    return 0


def choose_methods(options: Options) -> dict[str, Method]:
    """The method of --method, or standard inference and Self-Ensemble; for --json the latter."""
    from minise.method import Method, SelfEnsemble, Standard

    settings = {"group_size": options.group_size, "trials": options.trials, **options.settings()}
    if options.method is options.grouping is options.template is None:
        standard = {} if options.json else {"standard": Standard()}
        return standard | {"self-ensemble": SelfEnsemble(**settings)}
    from minise.methods.registry import make_methods  # takes a while

    both = ["self-ensemble"] if options.json else ["standard", "self-ensemble"]
    methods: dict[str, Method] = {}
    for name, method in make_methods(
        [options.method] if options.method else both, settings
    ).items():
        if not isinstance(method, Method):
            raise InputError(f"{name} is fitted on the answers of an evaluation; use minise eval")
        methods[name] = method
    return methods


def ask(
    lm: LanguageModel, name: str, method: Method, question: Question, options: Options
) -> Asked:
    from minise.method import label_logits

    plan = method.plan(lm, question, options.seed)
    answer = method.answer(plan, label_logits(lm, plan, options.engine or "tree"))
    prompts = [lm.tokenizer.decode(plan.prefix + ids) for ids in plan.branches]
    return Asked(name, plan, answer, prompts)


def as_json(asked: Asked, options: Options) -> dict[str, Any]:
    """The object that --json prints."""
    plan, answer = asked.plan, asked.answer
    prompts = {"prompts": asked.prompts} if options.show_prompts else {}
    return {
        "model": options.model,
        "method": asked.name,
        "engine": options.engine or "tree",
        "template": options.template or "default",
        "group_size": max(map(len, plan.groups.flat)),
        "trials": len(plan.groups.trials),
        "seed": options.seed,
        "question": plan.question.text,
        "choices": [
            {"text": text, "probability": float(p), "score": float(score)}
            for text, p, score in zip(
                plan.question.choices, answer.probabilities, answer.scores, strict=True
            )
        ],
        "prediction": answer.prediction,
        "groups": [
            {"choices": list(g.choices), "probabilities": g.probabilities.tolist(), "null": g.null}
            for g in answer.groups
        ],
        "tokens": {engine: plan.tokens(engine) for engine in ("separate", "dense", "tree")},
    } | prompts


def table(asked: Sequence[Asked]) -> list[str]:
    """The question, and a row for each choice: its probability by each method, as a number and as a
    bar. What a method predicts is marked."""
    question = asked[0].plan.question
    block = "█" if "█".encode(sys.stdout.encoding or "ascii", "replace") != b"?" else "#"
    texts = [printable(choice) for choice in question.choices]
    width = min(40, max(map(len, [*texts, NULL_ROW])))
    lines = [printable(question.text), ""]
    if len(asked) > 1:
        lines.append(f"{'':{width + 6}}" + "".join(f"{one.title:<30}" for one in asked))
    for i, text in enumerate(texts):
        line = f"  {text:<{width}}"
        for one in asked:
            p, mark = float(one.answer.probabilities[i]), ">" if one.answer.prediction == i else " "
            line += f"  {mark} {p:6.1%}  {block * round(16 * p):<18}"
        lines.append(line)
    null = mean_null(asked[-1].answer.groups)
    if null is not None:
        gap = " " * (30 * (len(asked) - 1) + 4)
        lines.append(f"  {NULL_ROW:<{width}}{gap}{null:6.1%}  {NULL_NOTE}")
    return [line.rstrip() for line in lines]


def explained(asked: Sequence[Asked], options: Options) -> list[str]:
    """What each method answers and what that cost, the score of the answer, and the prompts."""
    lines = []
    for one in asked:
        plan, answer = one.plan, one.answer
        choice, right = plan.question.choices[answer.prediction], plan.question.answer
        verdict = "right" if answer.prediction == right else "wrong"
        lines += ["", f"{one.title} answers: {choice}" + f" ({verdict})" * (right is not None)]
        lines += [f"  {line}" for line in cost(one, options.engine or "tree")]
        if len(plan.prompts) > 1:
            score = f"{answer.scores[answer.prediction]:.1%}"
            lines.append(f"  score: {score}, its mean probability in the prompts that list it")
        if "reasoning" in plan.notes:
            lines += ["", f"It wrote first: {plan.notes['reasoning'].strip()}"]
    for one in asked if options.show_prompts else ():
        for number, prompt in enumerate(one.prompts, 1):
            lines += ["", f"--- {one.title}, prompt {number} of {len(one.prompts)} ---", prompt]
    return lines


def cost(asked: Asked, engine: str) -> list[str]:
    """What was run, and how many tokens it took."""
    plan, K = asked.plan, len(asked.plan.question.choices)
    if len(plan.prompts) == 1:
        return [f"cost: 1 prompt with all {K} choices, {plan.tokens('separate'):,} tokens"]
    trials, m = len(plan.groups.trials), max(map(len, plan.groups.flat))
    drawn = "all orders" if plan.groups.weights else f"{trials} trial{'s' * (trials > 1)}"
    groups = f"groups of {m}" if m < K else f"one group with all {K} choices"
    separate, dense, tree = (f"{plan.tokens(name):,}" for name in ("separate", "dense", "tree"))
    return [
        f"cost: {drawn} of {groups} = {len(plan.prompts):,} prompts,",
        f"  {separate} tokens as separate prompts, {dense} packed, {tree} with common prefixes "
        f"merged (this run: {engine})",
    ]


def mean_null(groups: Sequence[Group]) -> float | None:
    """The weighted mean probability of the null option; None where it had no part."""
    if any(group.null is None for group in groups):
        return None
    total = sum(group.weight for group in groups)
    return sum(group.weight * (group.null or 0.0) for group in groups) / total
