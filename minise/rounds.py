"""Ask: a method's plan, the passes and rounds in which it is run, and the method's answer.

A pass may hold the prompts of several questions; one question may take several rounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from minise.engines import LanguageModel
from minise.grouping import Grouping
from minise.method import Answer, Method, Plan, SelfEnsemble, Standard, label_logits
from minise.methods.presets import Preset
from minise.methods.sequential import UntilDecided
from minise.prompt import shared_length
from minise.question import Question


def self_ensemble(
    lm: LanguageModel,
    question: Question,
    group_size: int = 4,
    trials: int = 20,
    seed: int = 0,
    engine: str = "tree",
    grouping: str | Grouping | None = None,
    null_option: bool | None = None,
    preset: str | Preset = "paper",
    until_decided: float | None = None,
    max_trials: int = 80,
) -> Answer:
    """Answer a question by Self-Ensemble (Section 3.2; packed as in Section 4).

    group_size is m, trials is N. `grouping` (a name in `grouping.GROUPINGS`, or a function) and
    `null_option` override the preset; with the default preset they are "random" and True. Raises
    InputError for sizes below 1, more choices than labels, labels that are not single tokens, or a
    prompt beyond the model's positions.

    `until_decided`, such as 0.01: in place of `trials`, ask until the prediction is decided at this
    level (`sequential.UntilDecided`), with at most `max_trials`.
    """
    if until_decided is not None:
        rounds = UntilDecided(
            group_size,
            until_decided,
            max_trials,
            grouping=grouping,
            null_option=null_option,
            preset=preset,
        )
        return ask(lm, rounds, question, seed, engine)
    method = SelfEnsemble(group_size, trials, grouping, null_option, preset)
    return ask(lm, method, question, seed, engine)


def standard(
    lm: LanguageModel, question: Question, engine: str = "tree", preset: str | Preset = "paper"
) -> Answer:
    """Standard inference: one prompt with all K choices and no null option; one group."""
    return ask(lm, Standard(preset), question, 0, engine)


def ask(
    lm: LanguageModel, method: Method, question: Question, seed: int = 0, engine: str = "tree"
) -> Answer:
    """Answer a question by any method."""
    plan, logits = run_plan(lm, method, method.plan(lm, question, seed), seed, engine)
    return method.answer(plan, logits)


def run_plan(
    lm: LanguageModel, method: Any, plan: Plan, seed: int, engine: str = "tree", **more: Any
) -> tuple[Plan, list[Tensor]]:
    """The plan as it was run, and its `label_logits`; `more` is for the method's `write`."""
    return run_plans(lm, method, [plan], [seed], engine, **more)[0]


def run_plans(
    lm: LanguageModel,
    method: Any,
    plans: Sequence[Plan],
    seeds: Sequence[int],
    engine: str,
    **more: Any,
) -> list[tuple[Plan, list[Tensor]]]:
    """`run_plan` for several plans. With the engine tree a round of all of them is one pass, and
    those that ask more go on together."""
    if hasattr(method, "write"):
        plans = [
            method.write(lm, plan, seed, **more) for plan, seed in zip(plans, seeds, strict=True)
        ]
    run = list(zip(plans, pass_logits(lm, plans, engine), strict=True))
    left = list(range(len(run))) if hasattr(method, "more") else []
    while left:
        found = [(i, method.more(lm, *run[i], seeds[i])) for i in left]
        asked = {i: plan for i, plan in found if plan is not None}
        told = pass_logits(lm, list(asked.values()), engine)
        for (i, plan), logits in zip(asked.items(), told, strict=True):
            run[i] = join([run[i][0], plan]), run[i][1] + logits
        left = list(asked)
    return run


def join(plans: Sequence[Plan]) -> Plan:
    """All prompts in one plan, one plan's after the other's. The question is the first one's."""
    shared = shared_length([plan.prefix for plan in plans])
    prompts = [
        replace(prompt, ids=plan.prefix[shared:] + prompt.ids)
        for plan in plans
        for prompt in plan.prompts
    ]
    groups = replace(plans[0].groups, trials=tuple(t for p in plans for t in p.groups.trials))
    if any(plan.groups.weights for plan in plans):
        each = [plan.groups.weights or (1.0,) * len(plan.groups.flat) for plan in plans]
        groups = replace(groups, weights=tuple(weight for weights in each for weight in weights))
    rounds = tuple(one for plan in plans for one in plan.rounds or (plan,))
    prefix = plans[0].prefix[:shared]
    return replace(
        plans[0], groups=groups, prefix=prefix, prompts=prompts, layout=None, rounds=rounds
    )


def pass_logits(lm: LanguageModel, plans: Sequence[Plan], engine: str) -> list[list[Tensor]]:
    """The `label_logits` of each plan: by the engine tree in one pass, of which no plan takes note.
    By the others, and with a layout of its own, each is a pass."""
    if engine != "tree" or len(plans) < 2 or any(plan.layout for plan in plans):
        return [label_logits(lm, plan, engine) for plan in plans]
    rows = iter(label_logits(lm, join(plans), engine))
    return [[next(rows) for _ in plan.prompts] for plan in plans]
