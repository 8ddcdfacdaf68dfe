"""What the fields of an object from a file may hold, and how the object becomes a value.

The value is a dataclass. It says of each field of which kind it is, and checks itself when it is
made, with `check_fields`. So a wrong file, and a wrong value of one's own, are refused alike.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Any, TypeVar

from minise.errors import InputError, quote

Value = TypeVar("Value")
LARGEST = 1e300  # beyond are infinities, and JSON's longest numbers
ROUNDING = 1e-3  # by which a share may be above 1


@dataclass(frozen=True)
class Kind:
    """words: what a field of this kind must be. holds: whether a value is that."""

    words: str
    holds: Callable[[Any], bool]


def whole_from(least: int, most: float = LARGEST) -> Kind:
    words = f"a whole number from {least}"
    if most != LARGEST:
        words += f" to {most:,}"
    return Kind(words, lambda value: type(value) is int and least <= value <= most)


def number_from(least: float, most: float = LARGEST) -> Kind:
    """Of type int or float, and no NaN."""

    def holds(value: Any) -> bool:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return is_number and least <= value <= most

    if most == LARGEST:
        return Kind(f"a number from {least}", holds)
    return Kind(f"a number from {least} to {most}", holds)


def list_of(kind: Kind) -> Kind:
    """A list that is not empty, each of its values of this kind."""

    def holds(value: Any) -> bool:
        return isinstance(value, list) and len(value) > 0 and all(map(kind.holds, value))

    return Kind(f"a list, each {kind.words}", holds)


def is_text(value: Any) -> bool:
    """Also no half of a surrogate pair, which no file could hold."""
    return isinstance(value, str) and value.encode(errors="ignore").decode() == value


TEXT = Kind("a text", is_text)
OBJECT = Kind("an object", lambda value: isinstance(value, dict))
YES_OR_NO = Kind("true or false", lambda value: isinstance(value, bool))
WHOLE = Kind("a whole number", lambda value: type(value) is int)
NUMBER = Kind("a number", number_from(-LARGEST).holds)
SHARE = Kind("a number from 0 to 1", number_from(0, 1 + ROUNDING).holds)


def check_fields(
    value: object, needed: Mapping[str, Kind], optional: Mapping[str, Kind] | None = None
) -> None:
    """Refuse a value with a field that is not of its kind; an optional one may be None. Raises
    InputError with the field's name, what it holds and what it must be."""
    for name, kind in needed.items():
        check(name, getattr(value, name), kind)
    for name, kind in (optional or {}).items():
        found = getattr(value, name)
        if found is not None:
            check(name, found, kind)


def check(name: str, value: object, kind: Kind) -> None:
    if not kind.holds(value):
        raise InputError(f"{name} is {quote(value)}, and must be {kind.words}")


def from_object(cls: type[Value], raw: Any) -> Value:
    """A dataclass by the fields of a JSON object that it has. Raises InputError for a value that is
    no object, for a field that is missing, and as the class itself does."""
    if not isinstance(raw, dict):
        raise InputError(f"{quote(raw)} is no object")
    given = {}
    for field in fields(cls):  # type: ignore[arg-type]
        if field.name in raw:
            given[field.name] = raw[field.name]
        elif field.default is MISSING and field.default_factory is MISSING:
            raise InputError(f"{field.name} is missing")
    return cls(**given)


def with_parts(raw: Any, name: str, cls: type[Any]) -> Any:
    """The object with the objects in its list `name` as dataclasses; anything else as it is, for
    `from_object` to refuse."""
    parts = raw.get(name) if isinstance(raw, dict) else None
    if not isinstance(parts, list):
        return raw
    return {**raw, name: [from_object(cls, part) for part in parts]}
