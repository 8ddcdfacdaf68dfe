"""Methods by their names, for the tests of methods/."""

from typing import Any

import torch

from minise import LanguageModel, LocalModel, Method, Prompts, Question
from minise import ask as ask_method
from minise.lab.methods.registry import make_method
from minise.method import GroupPlan

SIZES = {"group_size": 3, "trials": 4}


def method(name: str, **settings: Any) -> Method:
    """The method that a user writes so, or its class with these settings."""
    made = make_method(name, settings)[1]
    assert isinstance(made, Method)
    return made


def ask(
    lm: LocalModel, name: str, question: Question, engine: str = "tree", **settings: Any
) -> torch.Tensor:
    model = lm.with_engine(engine)
    return ask_method(model, method(name, **settings), question, 3).normalized


def prompts(
    lm: LanguageModel, name: str, question: Question, seed: int = 3, **settings: Any
) -> Prompts:
    """What a method asks the model."""
    _, asked = method(name, **settings).prompts(lm, question, seed)
    return asked


def texts_of(lm: LanguageModel, prompts: Prompts) -> list[str]:
    """The text of each prompt, without the beginning token."""
    texts = []
    for branch in prompts.branches:
        text = lm.tokenizer.decode([*prompts.prefix, *branch])
        texts.append(text.removeprefix("<s>"))
    return texts


def groups(
    lm: LanguageModel, one: Method, question: Question, seed: int = 0
) -> list[tuple[int, ...]]:
    """The groups that a method asks for."""
    plan, _ = one.prompts(lm, question, seed)
    assert isinstance(plan, GroupPlan)
    return plan.groups.flat
