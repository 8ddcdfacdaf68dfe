"""Questions and methods by their names, for the tests of methods/."""

from __future__ import annotations

from typing import Any

import torch

from minise import LanguageModel, Question
from minise import ask as ask_method
from minise.method import Plan
from minise.methods.build import build_asking
from minise.methods.registry import Variant

QUESTION = Question(
    "Which is a metal?", ["oak", "wren", "zinc", "silk", "rain", "salt", "wool", "clay"], answer=2
)
OTHER = Question("Which one flies?", ["eel", "cat", "owl", "ant", "yak"], answer=2)
SIZES = {"group_size": 3, "trials": 4}


def ask(
    lm: LanguageModel, method: str, question: Question, engine: str = "tree", **settings: Any
) -> torch.Tensor:
    variant = Variant("x", method, settings, engine)
    return ask_method(lm, build_asking(variant), question, 3, variant.engine).probabilities


def plan(
    lm: LanguageModel, method: str, question: Question, seed: int = 3, **settings: Any
) -> Plan:
    return build_asking(Variant("x", method, settings)).plan(lm, question, seed)
