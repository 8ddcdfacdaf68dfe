"""The methods by name, and their settings as a user writes them. Imports no torch."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any

from minise.errors import InputError, check_name, quote
from minise.lab.methods.groupings import grouping_named
from minise.loading.plugin import find_object

if TYPE_CHECKING:
    from minise.lab.methods.fitted import Fitted
    from minise.method import Method

# name -> module:class
METHODS: dict[str, str] = {
    "standard": "minise.method:Standard",
    "self-ensemble": "minise.method:SelfEnsemble",
    "authors-standard": "minise.lab.methods.authors_code:AuthorsStandard",
    "authors-code": "minise.lab.methods.authors_code:AuthorsCode",
    "cyclic": "minise.lab.methods.rotations:Cyclic",
    "full-list": "minise.lab.methods.full_list:FullList",
    "cloze": "minise.lab.methods.cloze:Cloze",
    "presence": "minise.lab.methods.presence:Presence",
    "vector-scaling": "minise.lab.methods.calibration:VectorScaling",
    "dirichlet": "minise.lab.methods.calibration:Dirichlet",
    "cot": "minise.lab.methods.reasoning:ChainOfThought",
    "reasoning": "minise.lab.methods.reasoning:Reasoning",
    "first-trials": "minise.lab.methods.first_trials:FirstTrials",
}
NAMED = ("grouping", "template")  # settings that are written as a name
ABLATIONS = ("without-mask", "without-positions")  # of the paper: minise/engines.py


def make_methods(
    texts: Sequence[str],
    options: Mapping[str, Any] | None = None,
    defaults: Mapping[str, Any] | None = None,
) -> dict[str, Method | Fitted]:
    """The methods as the user wrote them, by the name of their column: `self-ensemble`, or with
    settings `self-ensemble(trials=7)`, or a class of his own, `./mine.py:Mine`. Methods that a
    fitted one needs are put in front. `options`: settings for all methods that have them.
    `defaults`: likewise, but for a class of his own that states one itself.

    Raises InputError for an unknown method or setting, and for a method that is written twice.
    """
    methods: dict[str, Method | Fitted] = {}
    for text in texts:
        name, method = make_method(text, options or {}, defaults)
        if name in methods:
            raise InputError(f"{quote(','.join(texts))} names {name} twice; name each once")
        methods[name] = method
    missing = []
    for method in methods.values():
        for name in getattr(method, "needs", ()):
            if name not in methods and name not in missing:
                missing.append(name)
    if missing:
        return make_methods([*missing, *texts], options, defaults)
    return methods


def methods_to_ask(
    text: str | None, settings: Mapping[str, Any], defaults: Mapping[str, Any] | None = None
) -> dict[str, Method]:
    """The method that `minise ask --method` names; by default standard inference and Self-Ensemble,
    for settings that are written as names. defaults: as `make_methods` has them. Raises InputError
    as `make_methods` does, and for what cannot answer one question alone."""
    from minise.method import Method

    texts = ["standard", "self-ensemble"]
    if text is not None:
        texts = split_names(text)
        if len(texts) > 1:
            what = f"--method {quote(text)} names {len(texts)} methods"
            raise InputError(f"{what}; give one, or take minise eval")
    if "trials" in settings:
        settings = {**settings, "orders": settings["trials"]}  # a trial of the full list is one
    if defaults is not None:
        defaults = {**defaults, "orders": defaults["trials"]}
    methods = {}
    for name, method in make_methods(texts, settings, defaults).items():
        if not isinstance(method, Method):
            raise InputError(f"{name} is fitted on the answers of an evaluation; use minise eval")
        methods[name] = method
    return methods


def make_method(
    text: str, options: Mapping[str, Any], defaults: Mapping[str, Any] | None = None
) -> tuple[str, Method | Fitted]:
    """One method and the name of its column."""
    where, settings = read_settings(text)
    if where in ABLATIONS:
        what = f"{where} is an engine, not a method"
        raise InputError(f"{what}; write --method self-ensemble --engine {where}")
    if ":" not in where:
        check_name("method", where, METHODS)
    cls = find_object(METHODS.get(where, where))
    check_class(where, cls)
    known = {}  # the settings that it has, with their defaults
    if is_dataclass(cls):
        for field in fields(cls):
            if field.init:
                known[field.name] = field.default

    chosen = {}
    for name, value in (defaults or {}).items():
        states_its_own = where not in METHODS and name in vars(cls)
        if name in known and not states_its_own:
            chosen[name] = value
    for name, value in options.items():
        if name in known:
            chosen[name] = value
    for name, value in settings.items():
        check_setting(where, name, value, known)
        chosen[name] = value
    if isinstance(chosen.get("grouping"), str):
        chosen["grouping"] = grouping_named(chosen["grouping"])
    if "template" in known:
        template = chosen.get("template", known["template"])
        chosen["template"] = find_template(template, options.get("solved"))
    listed = ",".join(f"{name}={value}" for name, value in settings.items())
    column = f"{cls.name}({listed})" if listed else cls.name
    try:
        return column, cls(**chosen)
    except InputError as error:
        raise InputError(f"{where}: {error}") from None


def check_class(where: str, cls: Any) -> None:
    """Refuse what is no method."""
    from minise.lab.methods.fitted import Fitted
    from minise.method import Method

    if not (isinstance(cls, type) and issubclass(cls, Method | Fitted) and hasattr(cls, "name")):
        wanted = "give a class with a name, made from Method or Fitted"
        raise InputError(f"{quote(where)} is no method; {wanted}")


def check_setting(where: str, name: str, value: Any, known: Mapping[str, Any]) -> None:
    """Refuse a setting that the method `where` does not have, or a value of another type than that
    of its default."""
    if name not in known:
        names = ", ".join(known) or "none"
        raise InputError(f"{where} has no setting {quote(name)}; it has {names}")
    if name in NAMED and not isinstance(value, str):
        raise InputError(f"{where}: {name}={quote(value)} is wrong; give a name")
    wanted = type(known[name])
    if wanted not in (bool, int, float, str):
        return  # no default tells the type
    if type(value) is wanted or (wanted is float and type(value) is int):
        return
    raise InputError(f"{where}: {name}={quote(value)} is wrong; give {wanted.__name__}")


def find_template(template: Any, solved: Any = ()) -> Any:
    """The template that a setting names, after solved questions if there are any. `template` may
    also be one already, or None: the method's own."""
    if not isinstance(template, str) and not solved:
        return template
    from minise.lab.methods.templates import (  # takes a while
        TEMPLATES,
        after_solved,
        template_named,
    )

    if isinstance(template, str):
        template = template_named(template)
    if not solved:
        return template
    return after_solved(template or TEMPLATES["authors"], solved)


def read_settings(text: str) -> tuple[str, dict[str, Any]]:
    """The method and the settings of "method(name=value,...)". Raises InputError for any other
    form. A value is a JSON number, true or false, or else text."""
    match = re.fullmatch(r"(.*?)(?:\(([^()]*)\))?", text.strip(), re.DOTALL)
    where, listed = match.groups() if match else ("", "")
    settings: dict[str, Any] = {}
    for part in listed.split(",") if listed else ():
        before, is_set, after = part.partition("=")
        name = before.strip().replace("-", "_")
        value = after.strip()
        is_setting = is_set and name and re.fullmatch(r"[\w./:-]+", value)
        if not is_setting or name in settings:
            wanted = "write method(name=value,name=value)"
            raise InputError(f"{quote(text)}: {quote(part)} is no setting, or twice; {wanted}")
        try:
            settings[name] = json.loads(value, parse_constant=str)
        except ValueError:
            settings[name] = value
    return where, settings


def split_names(text: str) -> list[str]:
    """The names of a list, each with its settings. Commas in parentheses separate settings.

    >>> split_names("standard,self-ensemble(grouping=exact,trials=7)")
    ['standard', 'self-ensemble(grouping=exact,trials=7)']
    """
    return re.split(r",(?![^()]*\))", text)
