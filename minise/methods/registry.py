"""The methods by name, and how one is made from its name and settings. Imports no torch.

A method is an object with a `name` that either asks the model or is fitted on other methods:

    plan(lm, question, seed) -> Plan           answer(plan, logits) -> Answer
    needs: names of variants of the same run   fit(samples by those names) -> samples

Optional: check(questions with their seeds) raises InputError before any work for what the method
cannot do, and notes(lm, plan, answer, seed) -> dict adds JSON to a sample. The fields of a method
that is a dataclass are its settings.
"""

from __future__ import annotations

import re
from collections.abc import Container, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from types import new_class
from typing import Any

from minise.errors import InputError, one_line, quote
from minise.names import ENGINES
from minise.own import guarded, guarded_method
from minise.plugin import find_object

# name -> (where it is, what it is)
METHODS: dict[str, tuple[str, str]] = {
    "standard": ("minise.ensemble:Standard", "one prompt with all choices"),
    "self-ensemble": ("minise.ensemble:SelfEnsemble", "the paper's method"),
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
    "vector-scaling": (
        "minise.evaluation.calibration:VectorScaling",
        "standard, its logits scaled and shifted",
    ),
    "dirichlet": (
        "minise.evaluation.calibration:Dirichlet",
        "standard, a regression on its log-probabilities",
    ),
    "first-trials": (
        "minise.evaluation.first_trials:FirstTrials",
        "the first N trials of another variant",
    ),
    "grouping-study": (
        "minise.evaluation.grouping_study:GroupingStudy",
        "sampled groupings against the exact one",
    ),
}
# What --method offers. The others are parts of experiments.
OFFERED = tuple(name for name in METHODS if name not in ("first-trials", "grouping-study"))


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
        if not isinstance(self.name, str) or not re.fullmatch(r"[\w.-]{1,60}", self.name):
            wanted = "use at most 60 letters, digits, ., _, -"
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


def make_variants(names: Sequence[str], options: dict[str, Any], engine: str) -> list[Variant]:
    """A complete variant for each of these methods, called by the method's name. Methods that the
    fitted ones need come in front. Raises InputError for an unknown method and one named twice."""
    variants: list[Variant] = []
    needed: list[str] = []
    for name in names:
        _check_known(name, OFFERED)
        variant = complete(Variant("unnamed", name, {}, engine), options)
        method = build(variant)
        variants.append(replace(variant, name=method.name))
        needed += getattr(method, "needs", ())
    have = [variant.name for variant in variants]
    if len(set(have)) < len(have):
        raise InputError(f"{','.join(names)} names a method twice; name each once")
    if missing := [name for name in dict.fromkeys(needed) if name not in have]:
        return make_variants([*missing, *names], options, engine)
    return variants


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
        known = ", ".join(OFFERED)
        raise InputError(
            f"method {quote(method)} is unknown; use some of {known}, or FILE.py:CLASS"
        )


def _settings(method: Any) -> list[str]:
    """The names of the settings of a method, or of its class."""
    return [one.name for one in fields(method) if one.init] if is_dataclass(method) else []
