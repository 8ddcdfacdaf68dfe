"""Several questions in one pass."""

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from minise.engines import LanguageModel
from minise.layout import shared_length
from minise.method import Plan, label_logits


def join(plans: Sequence[Plan]) -> Plan:
    """A plan to be run only: the prompts of all plans; question and groups are the first's."""
    shared = shared_length([plan.prefix for plan in plans])
    prompts = [
        replace(prompt, ids=plan.prefix[shared:] + prompt.ids)
        for plan in plans
        for prompt in plan.prompts
    ]
    return replace(plans[0], prefix=plans[0].prefix[:shared], prompts=prompts)


def pass_logits(
    lm: LanguageModel, plans: Sequence[Plan], engine: str, total: bool = False
) -> list[list[Tensor]]:
    """The `label_logits` of each plan. The engine tree runs the plans of several questions in one
    pass (the packing of Section 4, over questions), with the same result as in a pass for each. The
    other engines, and a plan with its own layout, take a pass for each plan."""
    if engine != "tree" or len(plans) < 2 or any(plan.layout for plan in plans):
        return [label_logits(lm, plan, engine, total) for plan in plans]
    rows = iter(label_logits(lm, join(plans), engine, total))
    return [[next(rows) for _ in plan.prompts] for plan in plans]
