"""Questions, methods by their names, and saved answers, for the tests of methods/."""

from typing import Any

import torch

from minise import LanguageModel, Method, Question
from minise import ask as ask_method
from minise.method import Plan
from minise.methods.registry import make_method

QUESTION = Question(
    "Which is a metal?", ["oak", "wren", "zinc", "silk", "rain", "salt", "wool", "clay"], answer=2
)
OTHER = Question("Which one flies?", ["eel", "cat", "owl", "ant", "yak"], answer=2)
SIZES = {"group_size": 3, "trials": 4}
ENGINES = ("tree", "dense", "separate", "plain")


def method(name: str, **settings: Any) -> Method:
    """The method that a user writes so, or its class with these settings."""
    made = make_method(name, settings)[1]
    assert isinstance(made, Method)
    return made


def ask(
    lm: LanguageModel, name: str, question: Question, engine: str = "tree", **settings: Any
) -> torch.Tensor:
    return ask_method(lm, method(name, **settings), question, 3, engine).probabilities


def plan(lm: LanguageModel, name: str, question: Question, seed: int = 3, **settings: Any) -> Plan:
    return method(name, **settings).plan(lm, question, seed)


def saved(number: int, logits: list[float], seed: int = 0, **more: Any) -> dict[str, Any]:
    """An answer of standard inference, as an evaluation saves it."""
    p = torch.tensor(logits, dtype=torch.float64).softmax(0).tolist()
    return {
        **{"id": f"q{number:05}", "seed": seed, "cluster": "", "question_hash": "h", "answer": 0},
        **{"prediction": p.index(max(p)), "probabilities": p, "scores": p, "logits": logits},
        **{"label": p.index(max(p)), "null": None, "tokens": 10, "seconds": 0.5, **more},
    }
