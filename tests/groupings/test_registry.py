"""Groupings by name, and functions of the user, whose results are checked."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from unittest.mock import NonCallableMock

import pytest

from minise import InputError
from minise.grouping import Grouping, Groups, random_partitions
from minise.grouping import make_groups as make
from minise.groupings.exact import all_ordered_groups
from minise.groupings.independent import independent_draws
from minise.groupings.registry import GROUPINGS, grouping_name, grouping_named


def make_groups(
    K: int, m: int, trials: int, seed: int, key: str, grouping: str | Grouping = "random"
) -> Groups:
    return make(K, m, trials, seed, key, grouping_named(grouping))


FILE = """
from minise import Groups


def mine(K, m, trials, seed, question_id):
    return {returned}
"""


@pytest.fixture
def groups_of(tmp_path: Path) -> Callable[[str], Groups]:
    """A function from what the grouping in a file returns to the groups of 4 choices."""

    def make(returned: str) -> Groups:
        path = tmp_path / "mine.py"
        path.write_text(FILE.format(returned=returned))
        return make_groups(4, 2, 3, 0, "x", f"{path}:mine")

    return make


@pytest.mark.parametrize(
    ("returned", "complaint"),
    [
        ("None", "returned NoneType; it must return Groups"),
        ("[[(0, 1), (2, 3)]]", "returned list; it must return Groups"),
        ("Groups(5)", "trials 5 are no tuples of groups"),
        ("Groups(((0, 1), (2, 3)))", "trials .* are no tuples of groups"),
        ("Groups(())", "number of trials 3 is below 1"),
        ("Groups((((0, 1), (2, 4)),))", r"group \[2, 4\] is wrong; .* ints from 0 to 3"),
        ("Groups((((0, 1), (2, -1)),))", r"group \[2, -1\] is wrong"),
        ("Groups((((0, 1), (2, 3.0)),))", r"group \[2, 3.0\] is wrong"),
        ("Groups((((0, 1), (2, 3, 2)),))", r"group \[2, 3, 2\] is wrong"),
        ("Groups((((0, 1), (2, 3), ()),))", r"group \[\] is wrong"),
        ("Groups((((0, 1), (3,)),))", "no group holds choice 2; each choice must be in a group"),
        (
            "Groups((((0, 1), (2, 3)),), (1,))",
            "weights .* above 0 for each of the 2 groups",
        ),
        ("Groups((((0, 1), (2, 3)),), (1, 2, 3))", "weights"),
        ("Groups((((0, 1), (2, 3)),), (1, float('nan')))", "weights"),
        ("Groups((((0, 1), (2, 3)),), (1, float('inf')))", "weights"),
        ("Groups((((0, 1), (2, 3)),), (1, 0))", "weights"),
        ("Groups((((0, 1), (2, 3)),), (1, 'a'))", "weights"),
        ("Groups((((0, 1), (2, 3)),), 5)", "weights 5 are wrong"),
        ("Groups((((0, 1), (2, 3)),) * 30_000)", "60,000 groups, over the limit of 50,000"),
    ],
)
def test_a_wrong_result_of_a_users_grouping_is_named(
    groups_of: Callable[[str], Groups], returned: str, complaint: str
) -> None:
    with pytest.raises(InputError, match=complaint) as caught:
        groups_of(returned)
    message = str(caught.value)
    assert len(message) < 500
    assert "\n" not in message


def test_a_users_grouping_may_miss_a_choice_by_chance(
    groups_of: Callable[[str], Groups],
) -> None:
    """As the released code's grouping does. Then the trials are independent."""
    assert groups_of("Groups((((0, 1),),), independent=True)").flat == [(0, 1)]
    assert groups_of("Groups([[[0, 1], [2, 3]]], [1, 2.5])").flat == [[0, 1], [2, 3]]


@pytest.mark.parametrize(
    ("source", "name", "complaint"),
    [
        ("exit(0)", "mine", "mine.py: could not be run (SystemExit: 0); fix the file"),
        ("raise KeyError", "mine", "mine.py: could not be run (KeyError: KeyError); fix the file"),
        ("\0", "mine", "source code string cannot contain null bytes); fix"),
        ("other = 3", "mine", "mine.py: defines no mine"),
    ],
)
def test_a_file_without_a_grouping_is_named(
    tmp_path: Path, source: str, name: str, complaint: str
) -> None:
    path = tmp_path / "mine.py"
    path.write_text(source)
    with pytest.raises(InputError) as caught:
        make_groups(4, 2, 3, 0, "x", f"{path}:{name}")
    assert complaint in str(caught.value)


@pytest.mark.parametrize("where", [":mine", "mine:", "...:x", "a..b:c", "no.such:x", "os:none"])
def test_a_malformed_or_absent_place_is_refused_in_one_line(where: str) -> None:
    with pytest.raises(InputError, match=r"write FILE\.py:NAME"):
        make_groups(4, 2, 3, 0, "x", where)


def test_an_exception_of_a_function_passed_in_python_is_not_caught() -> None:
    """In Python a traceback helps more than one line."""

    def mine(*_: object) -> Groups:
        raise KeyError("mine")

    with pytest.raises(KeyError):
        make_groups(4, 2, 3, 0, "x", mine)


def test_every_grouping_has_its_name() -> None:
    named = {
        "random": random_partitions,
        "independent": independent_draws,
        "exact": all_ordered_groups,
    }
    assert named == GROUPINGS
    for name, function in named.items():
        assert grouping_named(name) is function is grouping_named(function)
        assert grouping_name(function) == name

    def mine(*_: object) -> Groups:
        raise NotImplementedError

    assert grouping_name(mine) == "mine"
    assert "Mock" in grouping_name(NonCallableMock())
