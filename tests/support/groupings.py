"""Groups by the name of their grouping, for tests."""

from __future__ import annotations

from minise.grouping import Group, Grouping, Groups
from minise.grouping import make_groups as make
from minise.groupings.registry import grouping_named


def make_groups(
    K: int, m: int, trials: int, seed: int, key: str, grouping: str | Grouping = "random"
) -> Groups:
    return make(K, m, trials, seed, key, grouping_named(grouping))


def flat(*arguments: object, **options: object) -> list[list[int]]:
    """The groups of all trials, one after the other."""
    return [list(group) for group in make_groups(*arguments, **options).flat]


def exact_groups(k: int, m: int) -> list[tuple[Group, float]]:
    """Every ordered group, with its weight."""
    groups = make_groups(k, m, 0, 0, "", "exact")
    assert groups.weights is not None
    return list(zip(groups.flat, groups.weights, strict=True))
