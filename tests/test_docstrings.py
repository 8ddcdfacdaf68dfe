"""The examples in the docstrings show what the code does."""

from __future__ import annotations

import doctest
from types import ModuleType

import pytest

from minise import config, designs, grouping, prompt
from minise.evaluation import tasks


@pytest.mark.parametrize(
    "module", [config, designs, grouping, prompt, tasks], ids=lambda module: module.__name__
)
def test_the_examples_are_true(module: ModuleType) -> None:
    failed, attempted = doctest.testmod(module)
    assert attempted > 0
    assert failed == 0
