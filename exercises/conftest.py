"""Gives each test the file it tests, and the model that ships with minise."""

from __future__ import annotations

import importlib.util
import traceback
from collections.abc import Generator
from pathlib import Path
from types import ModuleType

import pytest
import torch

import minise
from minise.model import Decoder


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--solutions", action="store_true", help="exercises: test the solutions, not your files"
    )


@pytest.fixture(scope="module")
def exercise(request: pytest.FixtureRequest) -> ModuleType:
    """The file that a test is about: that of test_03_rope.py is ex03_rope.py, or with --solutions
    solutions/ex03_rope.py."""
    folder = request.path.parent
    if request.config.getoption("--solutions"):
        folder /= "solutions"
    path = folder / f"ex{request.path.name.removeprefix('test_')}"
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def lm() -> minise.LocalModel:
    """The small model that ships with minise, in float64: rounding is far below any mistake."""
    lm = minise.load("weights/tiny-llama", dtype=torch.float64, device="cpu")
    lm.decoder.requires_grad_(False)
    return lm


@pytest.fixture(scope="session")
def decoder(lm: minise.LocalModel) -> Decoder:
    return lm.decoder


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Function) -> Generator[None]:
    """In place of a traceback, say which function is still to be written."""
    words = ""
    try:
        yield
    except NotImplementedError as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        if last.filename != getattr(item.funcargs.get("exercise"), "__file__", None):
            raise
        place = f"{Path(last.filename).name}, line {last.lineno}"
        words = f"{last.name} is not written yet ({place})"
    if words:  # not inside the except, or pytest would also print what was caught
        pytest.fail(words, pytrace=False)
