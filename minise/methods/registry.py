"""The methods by name, and how one is made from its name and settings. Imports no torch.

A method is an object with a `name` that either asks the model or is fitted on other methods:

    plan(lm, question, seed) -> Plan           answer(plan, logits) -> Answer
    needs: names of variants of the same run   fit(samples by those names) -> samples

Optional: write(lm, plan, seed) -> Plan lets the model write text first; check(questions with their
seeds) raises InputError before any work for what the method cannot do; notes(lm, plan, answer,
seed) -> dict adds JSON to a sample. The fields of a method that is a dataclass are its settings.
"""

from __future__ import annotations

import json
import re
from collections.abc import Container, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from types import new_class
from typing import Any

from minise.errors import InputError, one_line, quote
from minise.loading.plugin import find_object
from minise.methods.own import guarded, guarded_method
from minise.names import ENGINES

# name -> (where it is, what it is)
METHODS: dict[str, tuple[str, str]] = {
    "standard": ("minise.method:Standard", "one prompt with all choices"),
    "self-ensemble": ("minise.method:SelfEnsemble", "the paper's method"),
    "until-decided": (
        "minise.methods.sequential:UntilDecided",
        "Self-Ensemble in rounds, until its answer is decided at level alpha",
    ),
    "without-mask": (
        "minise.methods.ablations:WithoutMask",
        "Self-Ensemble under a plain causal mask",
    ),
    "without-positions": (
        "minise.methods.ablations:WithoutPositions",
        "Self-Ensemble at positions 0, 1, 2, ...",
    ),
    "cyclic": ("minise.methods.rotations:Cyclic", "the mean over all K rotations of the question"),
    "cyclic-matched": (
        "minise.methods.rotations:CyclicMatched",
        "as many rotations as take Self-Ensemble's tokens",
    ),
    "permutations": (
        "minise.methods.rotations:Permutations",
        "random orders of the question, at Self-Ensemble's tokens",
    ),
    "pride": ("minise.methods.priors:PriDe", "standard without its prior, from some rotations"),
    "contextual-calibration": (
        "minise.methods.priors:ContextualCalibration",
        "standard without its prior, from empty questions",
    ),
    "batch-calibration": (
        "minise.methods.priors:BatchCalibration",
        "standard without its prior, the mean of all answers",
    ),
    "domain-calibration": (
        "minise.methods.priors:DomainCalibration",
        "standard without its prior, from random words",
    ),
    "elimination": (
        "minise.methods.tournaments:Elimination",
        "drop the choices below the mean, ask again",
    ),
    "knockout": ("minise.methods.tournaments:Knockout", "winners of groups meet again"),
    "league": ("minise.methods.tournaments:League", "every two choices meet"),
    "set-based": (
        "minise.methods.set_based:SetBased",
        "choices side by side in no order, read by their texts",
    ),
    "cot": ("minise.methods.reasoning:ChainOfThought", "chain of thought, then one prompt"),
    "reasoning": ("minise.methods.reasoning:Reasoning", "a reasoning model's own thoughts first"),
    "cot-ensemble": (
        "minise.methods.reasoning:ChainOfThoughtEnsemble",
        "one chain of thought, then Self-Ensemble after it",
    ),
    "vector-scaling": (
        "minise.methods.calibration:VectorScaling",
        "standard, its logits scaled and shifted",
    ),
    "dirichlet": (
        "minise.methods.calibration:Dirichlet",
        "standard, a regression on its log-probabilities",
    ),
    "first-trials": (
        "minise.methods.first_trials:FirstTrials",
        "the first N trials of another variant",
    ),
    "grouping-study": (
        "minise.evaluation.grouping_study:GroupingStudy",
        "sampled groupings against the exact one",
    ),
    "sequential-study": (
        "minise.evaluation.sequential_study:SequentialStudy",
        "rules of stopping against the exact expectation",
    ),
}
# What --method offers. The others are parts of experiments.
_PARTS = ("first-trials", "grouping-study", "sequential-study")
OFFERED = tuple(name for name in METHODS if name not in _PARTS)


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
        _check_known(self.method, METHODS)
        if self.engine not in ENGINES:
            known = ", ".join(ENGINES)
            raise InputError(f"engine {quote(self.engine)} is unknown; use one of {known}")
        if not isinstance(self.name, str) or not re.fullmatch(r"[\w.(),=-]{1,120}", self.name):
            wanted = "use at most 120 letters, digits, ., _, -, =, commas, parentheses"
            raise InputError(f"{quote(self.name)} is no name for a method; {wanted}")


def build(variant: Variant) -> Any:
    """The method object of a variant, made with those of its settings that the method has.

    Raises InputError for a class of the user's own that cannot be made or is not a method.
    """
    where, given = variant.method, variant.settings
    if where in METHODS:
        return _make(find_object(METHODS[where][0]), given)
    cls = find_object(where)
    if isinstance(cls, type):  # whose objects take no attributes if it has __slots__
        cls = new_class(cls.__name__, (cls,))
    return guarded_method(where, guarded(where, _make)(cls, given))


def complete(variant: Variant, options: dict[str, Any]) -> Variant:
    """The variant with a value for every setting of its method: its own, else that of `options`
    (None: not given), else the method's default. A default that JSON cannot hold is left out."""
    given = {name: value for name, value in options.items() if value is not None}
    method = build(replace(variant, settings={**given, **variant.settings}))
    values = {name: getattr(method, name) for name in _settings(method)}
    simple = (str, int, float, type(None))
    settings = {name: value for name, value in values.items() if isinstance(value, simple)}
    return replace(variant, settings=settings)


def split_methods(text: str) -> list[str]:
    """The methods of a list, each with its settings. Commas in parentheses part settings.

    >>> split_methods("standard,self-ensemble(grouping=balanced,trials=7)")
    ['standard', 'self-ensemble(grouping=balanced,trials=7)']
    """
    return re.split(r",(?![^()]*\))", text)


def make_variants(named: Sequence[str], options: dict[str, Any], engine: str) -> list[Variant]:
    """A complete variant for each method as it is named, `self-ensemble(trials=7)` or without
    settings; they come before `options`. It is called by the method's name with these settings.

    Methods that the fitted ones need come in front. Raises InputError for an unknown method or
    setting, and for a method that is named twice with the same settings.
    """
    variants: list[Variant] = []
    needed: list[str] = []
    for text in named:
        where, given = _read_settings(text)
        _check_known(where, OFFERED)
        _check_settings(where, given)
        variant = complete(Variant("unnamed", where, given, engine), options)
        method = build(variant)
        told = ",".join(f"{name}={_plain(value)}" for name, value in given.items())
        variants.append(replace(variant, name=f"{method.name}({told})" if told else method.name))
        needed += getattr(method, "needs", ())
    made = [variant.name for variant in variants]
    if len(set(made)) < len(made):
        raise InputError(f"{quote(','.join(named))} names a method twice; name each once")
    if missing := [name for name in dict.fromkeys(needed) if name not in made]:
        return make_variants([*missing, *named], options, engine)
    return variants


def _read_settings(text: str) -> tuple[str, dict[str, Any]]:
    """The method and the settings of "method(name=value,...)". Raises InputError for any other
    form."""
    found = re.fullmatch(r"(.*?)(?:\(([^()]*)\))?", text.strip(), re.DOTALL)
    assert found is not None
    where, listed = found.groups()
    settings: dict[str, Any] = {}
    for part in listed.split(",") if listed else ():
        name, is_set, value = (one.strip() for one in part.partition("="))
        name = name.replace("-", "_")
        if not (is_set and name and value) or name in settings:
            raise InputError(
                f"{quote(text)}: {quote(part)} sets nothing, or what is set already; "
                "write method(name=value,name=value)"
            )
        try:
            settings[name] = json.loads(value, parse_constant=str)
        except (ValueError, RecursionError):
            settings[name] = value
        if not isinstance(settings[name], str | int | float):
            raise InputError(f"{quote(text)}: {quote(value)} must be text, a number, true or false")
    return where, settings


def _check_settings(where: str, given: dict[str, Any]) -> None:
    """Raise InputError for a setting that the method has not, and for a value that the annotation
    of the setting rules out."""
    cls = find_object(METHODS[where][0] if where in METHODS else where)
    if unknown := [name for name in given if name not in _settings(cls)]:
        have = ", ".join(_settings(cls)) or "none"
        raise InputError(f"{where} has no setting {quote(unknown[0])}; it has {have}")
    kinds = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}
    for name, value in given.items():
        annotated = next(one.type for one in fields(cls) if one.name == name)
        words = re.findall(r"\w+", getattr(annotated, "__name__", str(annotated)))
        wanted = [kind for kind in kinds if kind.__name__ in words]
        fitting = {type(value), float} if type(value) is int else {type(value)}
        if wanted and fitting.isdisjoint(wanted):
            told = " or ".join(kinds[kind] for kind in wanted)
            raise InputError(f"{where}: {name}={quote(value)} is wrong; give {told}")


def _plain(value: Any) -> str:
    """A value as it is typed, in letters that a file's name can have."""
    text = value if isinstance(value, str) else json.dumps(value)
    return re.sub(r"[^\w.-]", "_", text)


def _make(cls: Any, given: dict[str, Any]) -> Any:
    settings = {name: given[name] for name in _settings(cls) if name in given}
    try:
        method = cls(**settings)
    except TypeError as error:
        raise InputError(f"could not be made ({one_line(error)})") from None
    fitted = hasattr(method, "needs") or hasattr(method, "fit")
    wanted = ("name", "needs", "fit") if fitted else ("name", "plan", "answer")
    if missing := [name for name in wanted if not hasattr(method, name)]:
        either = "a method has name, plan and answer, or name, needs and fit"
        raise InputError(f"has no {' and no '.join(missing)}; {either}")
    if fitted and isinstance(method.needs, str):
        raise InputError(f"needs is text; write ({quote(method.needs)},)")
    if fitted and not all(isinstance(name, str) for name in method.needs):
        raise InputError(f"needs is {quote(method.needs)}; write the names of methods")
    return method


def _check_known(method: str, names: Container[str]) -> None:
    if method not in names and ":" not in method:
        known = f"{', '.join(OFFERED[:8])}, ... (all by: minise tasks), or FILE.py:CLASS"
        raise InputError(f"method {quote(method)} is unknown; use some of {known}")


def _settings(method: Any) -> list[str]:
    """The names of the settings of a method, or of its class."""
    return [one.name for one in fields(method) if one.init] if is_dataclass(method) else []
