"""The defaults of a fitted method, and the check that all questions have one number of choices."""

from __future__ import annotations

import re

import pytest

from minise import Question
from minise.errors import InputError
from minise.methods.fitted import Fitted, check_same_size


def test_by_default_a_fitted_method_needs_nothing_and_refuses_nothing() -> None:
    method = Fitted()
    assert (method.needs, method.regularisation) == ((), "")
    assert method.check([(0, Question("Q", ["a", "b"]))]) is None
    with pytest.raises(NotImplementedError):
        method.fit({})


@pytest.mark.parametrize("sizes", [[], [4], [4, 4, 4]])
def test_questions_of_one_size_pass(sizes: list[int]) -> None:
    check_same_size("x", iter(sizes))


def test_questions_of_several_sizes_are_refused_with_the_smallest_and_the_largest() -> None:
    need = "x needs the same number of choices in every question; found 3 to 8"
    message = f"{need}; use --only-choices K or --cut-to K"
    with pytest.raises(InputError, match=f"^{re.escape(message)}$"):
        check_same_size("x", [4, 3, 8, 4])
