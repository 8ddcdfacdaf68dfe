"""Gives each test the file it tests, and the model that ships with minise."""

from __future__ import annotations

import importlib.util
import signal
import threading
import traceback
from _thread import interrupt_main
from collections.abc import Callable, Generator
from functools import wraps
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import pytest
import torch

import minise
from minise.model import Decoder

SECONDS = 60  # after which a test is stopped; none takes more than a few


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--solutions", action="store_true", help="exercises: test the solutions, not your files"
    )


@pytest.fixture(scope="module")
def exercise(request: pytest.FixtureRequest) -> ModuleType:
    """The file that a test is about: that of test_03_rope.py is ex03_rope.py, or with --solutions
    solutions/ex03_rope.py, whose functions have the docstrings of the exercise."""
    path = request.path.parent / f"ex{request.path.name.removeprefix('test_')}"
    if not request.config.getoption("--solutions"):
        return read(path)
    solution = read(path.parent / "solutions" / path.name)
    for name, function in functions(read(path)).items():
        functions(solution)[name].__doc__ = function.__doc__
    return solution


class Exercise(ModuleType):
    """A file whose functions, taken from it by a test, fail in words where they return nothing."""

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        return must_return(found) if isinstance(found, FunctionType) else found


def must_return(function: FunctionType) -> Callable[..., Any]:
    @wraps(function)
    def call(*given: Any, **named: Any) -> Any:
        result = function(*given, **named)
        if result is None:
            place = place_of(function.__code__.co_filename, function.__code__.co_firstlineno)
            words = f"{function.__name__} returns nothing: is a return missing? ({place})"
            pytest.fail(words, pytrace=False)
        return result

    return call


def functions(module: ModuleType) -> dict[str, FunctionType]:
    """Those that the file defines."""
    found = {}
    for name, value in vars(module).items():
        if isinstance(value, FunctionType) and value.__module__ == module.__name__:
            found[name] = value
    return found


def place_of(path: str, line: int | None) -> str:
    return f"{Path(path).name}, line {line}"


def read(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    module.__class__ = Exercise
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
    """In place of a traceback, say which function is still to be written, or does not end."""
    words = ""
    is_late = threading.Event()

    def stop() -> None:
        is_late.set()
        interrupt_main()  # a KeyboardInterrupt in the test, on every system

    timer = threading.Timer(SECONDS, stop)
    # In the background of a shell Ctrl-C is ignored, and so would be what `stop` sends.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    timer.start()
    try:
        yield
    except (NotImplementedError, KeyboardInterrupt) as error:
        own = getattr(item.funcargs.get("exercise"), "__file__", None)
        frames = traceback.extract_tb(error.__traceback__)
        inside = [frame for frame in frames if frame.filename == own]
        if isinstance(error, KeyboardInterrupt):
            if not is_late.is_set():
                raise  # Ctrl-C
            words = f"stopped after {SECONDS} s"
            if inside:
                words = f"{inside[-1].name} does not end: stopped after {SECONDS} s"
        else:
            if frames[-1].filename != own:
                raise
            words = f"{frames[-1].name} is not written yet"
        if inside:
            words += f" ({place_of(inside[-1].filename, inside[-1].lineno)})"
    finally:
        timer.cancel()
        signal.signal(signal.SIGINT, before)
    if words:  # not inside the except, or pytest would also print what was caught
        pytest.fail(words, pytrace=False)
