"""Make the method objects of variants.

Names of groupings and presets become objects here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import Field, fields, is_dataclass, replace
from math import inf
from types import new_class
from typing import Any

from minise.errors import InputError, one_line, quote
from minise.groupings.registry import grouping_named
from minise.loading.plugin import find_object
from minise.method import PAPER, Method
from minise.methods.fitted import Fitted
from minise.methods.presets import preset_named
from minise.methods.registry import METHODS, OFFERED, Variant, check_method_name

# Settings of these names are text in a variant, and objects in a method.
OBJECTS: dict[str, Callable[[str], object]] = {"grouping": grouping_named, "preset": preset_named}


def build(variant: Variant) -> Method | Fitted:
    """The method object of a variant, made with those of the variant's settings that it has.

    Raises InputError for a class of the user's own that cannot be made or is not a method.
    """
    where, settings = variant.method, variant.settings
    if where in METHODS:
        return _make(find_object(METHODS[where][0]), settings)
    cls = find_object(where)
    if not isinstance(cls, type) or not (hasattr(cls, "plan") or hasattr(cls, "fit")):
        raise InputError(f"{where}: is no class with plan or fit; see docs/extending.md")
    if not issubclass(cls, Method | Fitted):  # it need not name its base class
        cls = new_class(cls.__name__, (cls, Fitted if hasattr(cls, "fit") else Method))
    return _make(cls, settings)


def build_asking(variant: Variant) -> Method:
    """`build` for a method that asks the model. Raises InputError for a fitted method."""
    method = build(variant)
    if isinstance(method, Fitted):
        raise InputError(f"{variant.method} is fitted on other methods; it asks nothing itself")
    return method


def complete(variant: Variant, options: dict[str, Any]) -> Variant:
    """The variant with a value for every setting of its method: the variant's own value, else that
    in `options` if it is not None, else the method's default. A default that JSON cannot hold is
    left out."""
    settings = {name: value for name, value in options.items() if value is not None}
    settings |= variant.settings
    method = build(replace(variant, settings=settings))
    values = {}
    for field in _settings(method):
        default = "paper" if field.default is PAPER else field.default
        value = settings.get(field.name, default)
        if _json_holds(value):
            values[field.name] = value
    return replace(variant, settings=values)


def make_variants(texts: Sequence[str], options: dict[str, Any], engine: str) -> list[Variant]:
    """A complete variant for each method as the user wrote it: `self-ensemble`, or with settings,
    `self-ensemble(trials=7)`. These settings take precedence over `options`, and are part of the
    variant's name.

    Methods that a fitted one needs are put in front. Raises InputError for an unknown method or
    setting, and for a method that is written twice with the same settings.
    """
    variants: list[Variant] = []
    needed: list[str] = []
    for text in texts:
        where, settings = _read_settings(text)
        check_method_name(where, OFFERED)
        _check_settings(where, settings)
        variant = complete(Variant("unnamed", where, settings, engine), options)
        method = build(variant)
        listed = ",".join(f"{name}={_plain(value)}" for name, value in settings.items())
        name = f"{method.name}({listed})" if listed else method.name
        variants.append(replace(variant, name=name))
        if isinstance(method, Fitted):
            needed += method.needs
    names = [variant.name for variant in variants]
    if len(set(names)) < len(names):
        raise InputError(f"{quote(','.join(texts))} names a method twice; name each once")
    missing = [name for name in dict.fromkeys(needed) if name not in names]
    if missing:
        return make_variants([*missing, *texts], options, engine)
    return variants


def _read_settings(text: str) -> tuple[str, dict[str, Any]]:
    """The method and the settings of "method(name=value,...)". Raises InputError for any other
    form."""
    match = re.fullmatch(r"(.*?)(?:\(([^()]*)\))?", text.strip(), re.DOTALL)
    assert match is not None
    where, listed = match.groups()
    settings: dict[str, Any] = {}
    for part in listed.split(",") if listed else ():
        name, is_set, value = (one.strip() for one in part.partition("="))
        name = name.replace("-", "_")
        if not (is_set and name and value) or name in settings:
            raise InputError(
                f"{quote(text)}: {quote(part)} is not a setting, or it is there twice; "
                "write method(name=value,name=value)"
            )
        try:
            settings[name] = json.loads(value, parse_constant=str)
        except (ValueError, RecursionError):
            settings[name] = value
        if not isinstance(settings[name], str | int | float):
            raise InputError(f"{quote(text)}: {quote(value)} must be text, a number, true or false")
        if settings[name] in (inf, -inf):  # such as 1e999: JSON files cannot hold it
            raise InputError(f"{quote(text)}: {quote(value)} is too large; give a finite number")
    return where, settings


def _check_settings(where: str, settings: dict[str, Any]) -> None:
    """Raise InputError for a setting that the method does not have, and for a value that does not
    fit the setting's type annotation."""
    cls = find_object(METHODS[where][0] if where in METHODS else where)
    annotations = {field.name: field.type for field in _settings(cls)}
    kinds = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}
    for name, value in settings.items():
        if name not in annotations:
            names = ", ".join(annotations) or "none"
            raise InputError(f"{where} has no setting {quote(name)}; it has {names}")
        annotation = str if name in OBJECTS else annotations[name]
        words = re.findall(r"\w+", getattr(annotation, "__name__", str(annotation)))
        allowed = [kind for kind in kinds if kind.__name__ in words]
        fitting = {type(value), float} if type(value) is int else {type(value)}
        if allowed and fitting.isdisjoint(allowed):
            either = " or ".join(kinds[kind] for kind in allowed)
            raise InputError(f"{where}: {name}={quote(value)} is wrong; give {either}")


def _json_holds(value: Any) -> bool:
    """Whether a JSON file can hold a setting: not inf, and not an int of thousands of digits."""
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        return False
    return isinstance(value, str | int | float | None)


def _plain(value: Any) -> str:
    """A value as the user types it, in characters that a file name can have."""
    text = value if isinstance(value, str) else json.dumps(value)
    return re.sub(r"[^\w.-]", "_", text)


def _make(cls: type[Method] | type[Fitted], settings: dict[str, Any]) -> Method | Fitted:
    values: dict[str, Any] = {}
    for field in _settings(cls):
        if field.name not in settings:
            continue
        value = settings[field.name]
        if field.name in OBJECTS and value is not None:
            value = OBJECTS[field.name](value)
        values[field.name] = value
    try:
        return cls(**values)
    except TypeError as error:
        raise InputError(f"could not be made ({one_line(error)})") from None


def _settings(method: object) -> list[Field[Any]]:
    """The settings of a method, or of its class, as dataclass fields."""
    return [field for field in fields(method) if field.init] if is_dataclass(method) else []
