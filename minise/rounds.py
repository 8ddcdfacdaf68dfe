"""Answer questions: run a method's plans in passes and rounds, and get its answers.

A pass is one call of the model. It may hold the prompts of several questions (the packing of
Section 4, over questions). A round is all that a method asks at a time. Most methods have one; a
method whose next prompts depend on the results so far has more.

Here the paper's method ends. Next to read is the model itself: config.py, rope.py, attention.py,
cache.py, model.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from minise.engines import LanguageModel
from minise.grouping import Trial
from minise.method import Answer, Method, OnText, Plan, label_logits
from minise.prompt import shared_length
from minise.question import Question


def ask(
    lm: LanguageModel, method: Method, question: Question, seed: int = 0, engine: str = "tree"
) -> Answer:
    """The answer of a method to one question. Raises InputError as `plan` and the engine do."""
    plan, logits = run_plan(lm, method, method.plan(lm, question, seed), seed, engine)
    return replace(method.answer(plan, logits), choices=tuple(question.choices))


def run_plan(
    lm: LanguageModel,
    method: Method,
    plan: Plan,
    seed: int,
    engine: str = "tree",
    on_text: OnText | None = None,
) -> tuple[Plan, list[Tensor]]:
    """Run a plan and its further rounds. Returns the plan of all rounds, and its `label_logits`.
    `on_text` gets what the model writes."""
    return run_plans(lm, method, [plan], [seed], engine, on_text)[0]


def run_plans(
    lm: LanguageModel,
    method: Method,
    plans: Sequence[Plan],
    seeds: Sequence[int],
    engine: str,
    on_text: OnText | None = None,
) -> list[tuple[Plan, list[Tensor]]]:
    """`run_plan` for several plans. With the engine tree, one round of all of them is one pass."""
    with_seeds = list(zip(plans, seeds, strict=True))
    if on_text is None:  # a user's own `write` need not have this parameter
        plans = [method.write(lm, plan, seed) for plan, seed in with_seeds]
    else:
        plans = [method.write(lm, plan, seed, on_text) for plan, seed in with_seeds]
    results = list(zip(plans, pass_logits(lm, plans, engine), strict=True))
    unfinished = list(range(len(results)))
    while unfinished:
        next_plans: dict[int, Plan] = {}
        for i in unfinished:
            plan, logits = results[i]
            next_plan = method.more(lm, plan, logits, seeds[i])
            if next_plan is not None:
                next_plans[i] = next_plan
        next_logits = pass_logits(lm, list(next_plans.values()), engine)
        for (i, next_plan), new_logits in zip(next_plans.items(), next_logits, strict=True):
            plan, logits = results[i]
            results[i] = join([plan, next_plan]), logits + new_logits
        unfinished = list(next_plans)
    return results


def join(plans: Sequence[Plan]) -> Plan:
    """One plan with the prompts of all plans, in their order: the rounds of one question.

    `pass_logits` also joins plans of different questions. Then only the prefix and the prompts mean
    something; the question is that of the first.
    """
    shared = shared_length([plan.prefix for plan in plans])
    prompts = [
        replace(prompt, ids=plan.prefix[shared:] + prompt.ids)
        for plan in plans
        for prompt in plan.prompts
    ]
    trials: list[Trial] = []
    weights: list[float] = []
    rounds: list[Plan] = []
    for plan in plans:
        trials += plan.groups.trials
        weights += plan.groups.weights or [1.0] * len(plan.groups.flat)
        rounds += plan.rounds or [plan]
    groups = replace(plans[0].groups, trials=tuple(trials))
    if any(plan.groups.weights for plan in plans):
        groups = replace(groups, weights=tuple(weights))
    return replace(
        plans[0],
        groups=groups,
        prefix=plans[0].prefix[:shared],
        prompts=prompts,
        layout=None,
        rounds=tuple(rounds),
    )


def pass_logits(lm: LanguageModel, plans: Sequence[Plan], engine: str) -> list[list[Tensor]]:
    """The `label_logits` of each plan. The engine tree runs all plans in one pass, with the same
    result as in a pass for each. The other engines, and a plan with its own layout, take a pass for
    each plan."""
    if engine != "tree" or len(plans) < 2 or any(plan.layout for plan in plans):
        return [label_logits(lm, plan, engine) for plan in plans]
    rows = iter(label_logits(lm, join(plans), engine))
    return [[next(rows) for _ in plan.prompts] for plan in plans]
