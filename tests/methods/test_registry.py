"""The names of methods, and what a variant may be called."""

from __future__ import annotations

import pytest

from minise import InputError
from minise.loading.plugin import find_object
from minise.method import Method
from minise.methods.fitted import Fitted
from minise.methods.registry import METHODS, OFFERED, Variant, check_method_name


@pytest.mark.parametrize("name", OFFERED)
def test_every_offered_method_is_a_class_of_that_name(name: str) -> None:
    where, description = METHODS[name]
    cls = find_object(where)
    assert issubclass(cls, Method) != issubclass(cls, Fitted)
    assert cls.name == name
    assert description


def test_a_users_own_class_needs_no_entry() -> None:
    check_method_name("./mine.py:Mine", METHODS)
    assert Variant("mine", "./mine.py:Mine").engine == "tree"


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("x", "standrad"), 'method "standrad" is unknown; use some of standard, '),
        (("x", "standard", {}, "fast"), 'engine "fast" is unknown; use one of '),
        (("a/b", "standard"), '"a/b" is no name for a method'),
        (("x" * 121, "standard"), "is no name for a method"),
    ],
)
def test_a_variant_that_cannot_be_run_or_stored_is_refused(
    arguments: tuple[object, ...], complaint: str
) -> None:
    with pytest.raises(InputError) as raised:
        Variant(*arguments)  # type: ignore[arg-type]
    assert complaint in str(raised.value)
