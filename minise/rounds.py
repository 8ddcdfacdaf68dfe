"""Ask: a method's plan, the passes and rounds in which it is run, and the method's answer.

A pass may hold the prompts of several questions; one question may take several rounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from minise.engines import LanguageModel
from minise.method import Answer, Method, OnText, Plan, label_logits
from minise.prompt import shared_length
from minise.question import Question


def ask(
    lm: LanguageModel, method: Method, question: Question, seed: int = 0, engine: str = "tree"
) -> Answer:
    """Answer a question by any method."""
    plan, logits = run_plan(lm, method, method.plan(lm, question, seed), seed, engine)
    return method.answer(plan, logits)


def run_plan(
    lm: LanguageModel,
    method: Method,
    plan: Plan,
    seed: int,
    engine: str = "tree",
    on_text: OnText | None = None,
) -> tuple[Plan, list[Tensor]]:
    """The plan as it was run, and its `label_logits`. `on_text` gets what the model writes."""
    return run_plans(lm, method, [plan], [seed], engine, on_text)[0]


def run_plans(
    lm: LanguageModel,
    method: Method,
    plans: Sequence[Plan],
    seeds: Sequence[int],
    engine: str,
    on_text: OnText | None = None,
) -> list[tuple[Plan, list[Tensor]]]:
    """`run_plan` for several plans. With the engine tree a round of all of them is one pass, and
    those that ask more go on together."""
    each = list(zip(plans, seeds, strict=True))
    if on_text is None:  # a method of the user's own need not know it
        plans = [method.write(lm, plan, seed) for plan, seed in each]
    else:
        plans = [method.write(lm, plan, seed, on_text) for plan, seed in each]
    run = list(zip(plans, pass_logits(lm, plans, engine), strict=True))
    going_on = list(range(len(run)))
    while going_on:
        next_plans: dict[int, Plan] = {}
        for i in going_on:
            if (plan := method.more(lm, *run[i], seeds[i])) is not None:
                next_plans[i] = plan
        rows = pass_logits(lm, list(next_plans.values()), engine)
        for (i, plan), logits in zip(next_plans.items(), rows, strict=True):
            run[i] = join([run[i][0], plan]), run[i][1] + logits
        going_on = list(next_plans)
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
