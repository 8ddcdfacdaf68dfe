"""`minise ask`: the question to each method, and the JSON object of the answers."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from minise.commands import ask_text, options
from minise.commands.ask import GROUPED, AskRequest
from minise.commands.model import Loaded, load_model
from minise.commands.question import check_groups, read_question
from minise.engines import LanguageModel
from minise.errors import InputError, printable
from minise.files import json_text
from minise.loading.names import DEFAULT_MODEL
from minise.loading.quantize import format_of
from minise.method import Answer, Group, Method, Plan
from minise.methods.build import build_asking, make_variants
from minise.methods.registry import Variant
from minise.names import LAYOUTS
from minise.question import Question
from minise.rounds import run_plan

Methods = Mapping[str, tuple[Variant, Method]]  # by the method's name, in the order of asking


def run(request: AskRequest) -> int:
    question = read_question(request.question)
    methods = _methods(request)
    for name in GROUPED:
        if name in methods:
            _check_groups(question, request, methods[name][0].settings)
    loaded = load_model(request.model)
    report = _ask_all(request, loaded, methods, question)
    if request.json:
        print(json_text(report))
        return 0
    if request.show_reasoning and "reasoning" in report:
        print("\n")
    has_block = "█".encode(sys.stdout.encoding or "ascii", "replace") != b"?"
    note = ["", ask_text.HOW_OFTEN] if _is_the_default(request, question) else []
    block = "█" if has_block else "#"
    print(ask_text.as_text(report, request.show_groups, block, note))
    return 0


def _methods(request: AskRequest) -> Methods:
    """The methods with the settings of the options."""
    groups = request.question
    settings = {
        "group_size": groups.group_size,
        "trials": groups.trials,
        "grouping": groups.grouping,
        "null_option": groups.null_option,
        "preset": groups.preset,
    }
    names = [request.method] if request.method else ["self-ensemble", "standard"]
    variants = make_variants(names, settings, request.engine)
    return {variant.method: (variant, build_asking(variant)) for variant in variants}


def _check_groups(question: Question, request: AskRequest, settings: Mapping[str, Any]) -> None:
    """Check the groups of a method, whose settings may be other than those of the options."""
    sizes = replace(
        request.question,
        group_size=settings["group_size"],
        trials=settings["trials"],
        grouping=settings["grouping"],
    )
    check_groups(question, sizes)


def _is_the_default(request: AskRequest, question: Question) -> bool:
    """Whether this is `minise ask` as it stands in the README, about which HOW_OFTEN is."""
    return (
        question is options.QUESTION and request.model.model == DEFAULT_MODEL and not request.method
    )


def _ask_all(
    request: AskRequest, loaded: Loaded, methods: Methods, question: Question
) -> dict[str, Any]:
    """The JSON object of the first method. That of a second one is in it, under "standard", or the
    reason why the second one cannot be groups."""
    report: dict[str, Any] = {}
    for variant, method in methods.values():
        try:
            answer = _ask(request, loaded, variant, method, question)
        except InputError as error:
            if not report:
                raise
            answer = {"left_out": str(error)}  # more choices than labels, for example
        if report:
            report["standard"] = answer
        else:
            report = answer
    return report


def _ask(
    request: AskRequest, loaded: Loaded, variant: Variant, method: Method, question: Question
) -> dict[str, Any]:
    """The JSON object of one method."""
    lm, seed, name = loaded.lm, request.question.seed, variant.method
    plan = method.plan(lm, question, seed)
    on_text = _print_piece if request.show_reasoning and not request.json else None
    plan, logits = run_plan(lm, method, plan, seed, request.engine, on_text)
    answer = method.answer(plan, logits)
    group_size, trials = len(question.choices), 1
    if name in GROUPED:
        group_size = variant.settings["group_size"]
        trials = 0 if plan.groups.complete else len(plan.groups.trials)
    settings = {
        "model": request.model.model,
        "method": name,
        "engine": request.engine,
        "group_size": group_size,
        "trials": trials,
        "seed": seed,
        "dtype": loaded.dtype,
        "device": loaded.device,
        "quantize": format_of(lm.decoder),
    }
    report = as_json(lm, settings, plan, answer)
    report |= method.notes(lm, plan, answer, seed) or {}
    if request.show_prompts:
        report["prompts"] = [lm.tokenizer.decode(plan.prefix + ids) for ids in plan.branches]
    return report


def as_json(
    lm: LanguageModel, settings: dict[str, Any], plan: Plan, answer: Answer
) -> dict[str, Any]:
    """The JSON object of the contract, which begins with the settings. `null`: the mean probability
    of "None of the above" over the prompts; `answer`: the index of the right choice, if known."""
    texts = plan.question.choices
    with_prediction = [group for group in answer.groups if answer.prediction in group.choices]
    return {
        **settings,
        "question": plan.question.text,
        "choices": [
            {
                "text": text,
                "probability": float(answer.probabilities[i]),
                "score": float(answer.scores[i]),
            }
            for i, text in enumerate(texts)
        ],
        "prediction": answer.prediction,
        "answer": plan.question.answer,
        "null": mean_null(answer.groups),
        "null_beside_prediction": mean_null(with_prediction),
        "groups": [
            {"choices": list(g.choices), "probabilities": g.probabilities.tolist(), "null": g.null}
            for g in answer.groups
        ],
        "tokens": {name: plan.tokens(lm.counted_as(name)) for name in LAYOUTS},
    }


def mean_null(groups: Sequence[Group]) -> float | None:
    """The weighted mean probability of the null option; None where it had no part."""
    if any(group.null is None for group in groups):
        return None
    total = sum(group.weight for group in groups)
    return sum(group.weight * (group.null or 0.0) for group in groups) / total


def _print_piece(_: int, piece: str) -> None:
    """What the model writes, with its lines as they are."""
    print("\n".join(map(printable, piece.split("\n"))), end="", flush=True)
