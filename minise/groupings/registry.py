"""The groupings by name, and functions of your own. Imports no torch."""

from __future__ import annotations

from minise.errors import InputError, quote
from minise.grouping import Grouping, random_partitions
from minise.groupings.exact import all_ordered_groups
from minise.groupings.independent import independent_draws
from minise.loading.plugin import find_object

# A grouping of your own needs no entry: "./mine.py:name" names it as well.
GROUPINGS: dict[str, Grouping] = {
    "random": random_partitions,
    "independent": independent_draws,
    "exact": all_ordered_groups,
}


def grouping_named(name: str | Grouping) -> Grouping:
    """The grouping for a name in GROUPINGS or "./file.py:name"; a function is returned as it is.

    Raises InputError for an unknown name.
    """
    if not isinstance(name, str):
        return name
    if name in GROUPINGS:
        return GROUPINGS[name]
    check_grouping_name(name)
    function: Grouping = find_object(name)
    return function


def check_grouping_name(name: str) -> None:
    """Raise InputError for a name that is neither in GROUPINGS nor FILE.py:NAME."""
    if name not in GROUPINGS and ":" not in name:
        raise InputError(f"grouping {quote(name)} is unknown; use one of {', '.join(GROUPINGS)}")


def grouping_name(grouping: Grouping) -> str:
    """The name of a grouping in GROUPINGS, else the function's own name."""
    for name, function in GROUPINGS.items():
        if function is grouping:
            return name
    return getattr(grouping, "__name__", repr(grouping))
