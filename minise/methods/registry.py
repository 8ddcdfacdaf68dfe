"""The methods by name. Imports no torch: `minise --help` lists them.

build.py makes the objects. A method asks the model (`method.Method`) or is fitted on other methods
(`fitted.Fitted`).
"""

from __future__ import annotations

import re
from collections.abc import Container
from dataclasses import dataclass, field
from typing import Any

from minise.errors import InputError, quote
from minise.names import ENGINES

# name -> (module:class, description)
METHODS: dict[str, tuple[str, str]] = {
    "standard": ("minise.method:Standard", "one prompt with all choices"),
    "self-ensemble": ("minise.method:SelfEnsemble", "the paper's method"),
    "without-mask": (
        "minise.methods.ablations:WithoutMask",
        "Self-Ensemble under a plain causal mask",
    ),
    "without-positions": (
        "minise.methods.ablations:WithoutPositions",
        "Self-Ensemble at positions 0, 1, 2, ...",
    ),
    "cyclic": ("minise.methods.rotations:Cyclic", "the mean over all K rotations of the question"),
    "permutations": (
        "minise.methods.rotations:Permutations",
        "the mean over random orders of the question",
    ),
    "pride": ("minise.methods.priors:PriDe", "standard without its prior, from some rotations"),
    "contextual-calibration": (
        "minise.methods.priors:ContextualCalibration",
        "standard without its prior, from empty questions",
    ),
    "cloze": (
        "minise.methods.cloze:Cloze",
        "the probability of each choice's text, unlisted",
    ),
    "presence": (
        "minise.methods.presence:Presence",
        "each choice alone against None of the above",
    ),
    "cot": ("minise.methods.reasoning:ChainOfThought", "chain of thought, then one prompt"),
    "reasoning": ("minise.methods.reasoning:Reasoning", "a reasoning model's own thoughts first"),
    "vector-scaling": (
        "minise.methods.calibration:VectorScaling",
        "standard, or another method, its logits scaled and shifted",
    ),
    "dirichlet": (
        "minise.methods.calibration:Dirichlet",
        "a regression on the log-probabilities of standard, or of another method",
    ),
    "first-trials": (
        "minise.methods.first_trials:FirstTrials",
        "the first N trials of another variant",
    ),
}
# What --method offers. The other one is a part of experiments.
OFFERED = tuple(name for name in METHODS if name != "first-trials")
PRESET_NAMES = ("paper", "authors-code")  # the keys of presets.PRESETS, which imports torch


@dataclass(frozen=True)
class Variant:
    """A method with its settings: one column of a table. `name` is its key in the results and in
    file names; `method` is a name in METHODS or "./file.py:Class". Raises InputError for an unknown
    method or engine, and for a name that cannot be part of a file name."""

    name: str
    method: str
    settings: dict[str, Any] = field(default_factory=dict)
    engine: str = "tree"

    def __post_init__(self) -> None:
        check_method_name(self.method, METHODS)
        if self.engine not in ENGINES:
            engines = ", ".join(ENGINES)
            raise InputError(f"engine {quote(self.engine)} is unknown; use one of {engines}")
        if not isinstance(self.name, str) or not re.fullmatch(r"[\w.(),=-]{1,120}", self.name):
            wanted = "use at most 120 letters, digits, ., _, -, =, commas, parentheses"
            raise InputError(f"{quote(self.name)} is no name for a method; {wanted}")


def split_names(text: str) -> list[str]:
    """The names of a list, each with its settings. Commas in parentheses separate settings.

    >>> split_names("standard,self-ensemble(grouping=exact,trials=7)")
    ['standard', 'self-ensemble(grouping=exact,trials=7)']
    """
    return re.split(r",(?![^()]*\))", text)


def check_method_name(method: str, names: Container[str]) -> None:
    """Raise InputError for a name that is neither among these nor FILE.py:CLASS."""
    if method not in names and ":" not in method:
        examples = f"{', '.join(OFFERED[:8])}, ... (all by: minise tasks), or FILE.py:CLASS"
        raise InputError(f"method {quote(method)} is unknown; use some of {examples}")
