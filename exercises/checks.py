"""What the tests of the exercises share. A test that fails says in words what is wrong."""

from __future__ import annotations

import doctest
from types import ModuleType

import pytest
import torch
from torch import Tensor


def holds(condition: object, words: str) -> None:
    """Fail with these words unless the condition is true."""
    if not condition:
        pytest.fail(words, pytrace=False)


def same(got: object, expected: Tensor, what: str, tolerance: float = 0.0) -> None:
    """Fail unless `got` is a tensor of the dtype and shape of `expected` with the same values, up
    to `tolerance`. `what`: what `got` is, as the message says it."""
    if not isinstance(got, Tensor):
        pytest.fail(f"{what} must be a tensor, but it is {got!r}", pytrace=False)
    for fact in ("dtype", "shape"):
        is_, must = getattr(got, fact), getattr(expected, fact)
        must_be = f"{what} must have the {fact} {must}, but it has {is_}"
        holds(is_ == must, must_be.replace("torch.Size", ""))
    if expected.is_floating_point():
        wrong = ~((got - expected).abs() <= tolerance)  # NaN is wrong, too
    else:
        wrong = got != expected
    if wrong.any():
        place = tuple(wrong.nonzero()[0].tolist())
        words = f"{what}: {int(wrong.sum())} of {wrong.numel()} values are wrong. "
        words += f"At {list(place)} it is {got[place].item()}; "
        words += f"it must be {expected[place].item()}."
        if expected.dtype == torch.bool and expected.dim() == 2:
            words += f"\n\n{beside(got, expected)}"
        elif expected.numel() <= 40:
            words += f"\n\nyours: {got.tolist()}\nright: {expected.tolist()}"
        pytest.fail(words, pytrace=False)


def beside(got: Tensor, expected: Tensor) -> str:
    """Two masks side by side: x where a row may attend to a column, ! where yours is wrong."""
    width = max(2 * expected.shape[1] + 2, len("yours") + 2)
    lines = ["yours".ljust(width) + "right (! marks what is wrong in yours)"]
    for row, right in zip(got.tolist(), expected.tolist(), strict=True):
        yours = " ".join(
            "!" if a != b else "x" if a else "." for a, b in zip(row, right, strict=True)
        )
        lines.append(yours.ljust(width) + " ".join("x" if b else "." for b in right))
    return "\n".join(lines)


def examples(exercise: ModuleType) -> None:
    """Fail unless the examples in the docstrings of the exercise are true."""
    runner = doctest.DebugRunner()
    found = [test for test in doctest.DocTestFinder().find(exercise) if test.examples]
    assert found, f"{exercise.__file__} has no examples"
    words = ""
    for test in found:
        try:
            runner.run(test)
        except doctest.UnexpectedException as stopped:
            raise stopped.exc_info[1] from None
        except doctest.DocTestFailure as failure:
            source, want = failure.example.source.strip(), failure.example.want.strip()
            words = f"The example in the docstring:\n\n>>> {source}\n{want}\n\n"
            words += f"Yours gives\n\n{failure.got.strip()}"
            break
    holds(not words, words)  # not inside the except, or pytest would also print what was caught
