"""A tiny model, thirty questions and runs on them, for the tests of runs and reports."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from minise.commands.cli import main
from tests.support.tiny import FAMILIES, write_checkpoint

METHODS = "standard,self-ensemble,cyclic,vector-scaling"
WORDS = ["oak", "wren", "zinc", "silk", "rain", "salt", "wool", "clay", "moss", "fern", "lime"]


@contextmanager
def no_drawing() -> Iterator[None]:
    """Figures are made and not drawn, which takes half the time of a small run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "matplotlib.figure.Figure.savefig",
            lambda figure, file, **options: None,
        )
        yield


@pytest.fixture
def undrawn() -> Iterator[None]:
    """For tests that check no figure. Those of report/ do."""
    pytest.importorskip("matplotlib")
    with no_drawing():
        yield


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("llama"), FAMILIES["llama"])


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Thirty questions of four choices."""
    draw = random.Random("questions")
    path = tmp_path_factory.mktemp("data") / "words.jsonl"
    with path.open("w") as file:
        for number in range(30):
            row = {"question": f"Number {number}?", "choices": draw.sample(WORDS, 4)}
            file.write(json.dumps({**row, "answer": draw.randrange(4), "id": f"q{number}"}) + "\n")
    return path


def arguments(model: Path, data: Path, folder: Path, *more: Any) -> list[str]:
    fixed = ["eval", "--model", model, "--task", data, "--trials", 3, "--group-size", 2]
    return [str(part) for part in [*fixed, "--output-path", folder, *more]]


@pytest.fixture(scope="session")
def whole(model: Path, data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An uninterrupted run."""
    folder = tmp_path_factory.mktemp("whole")
    with no_drawing():
        assert main(arguments(model, data, folder, "--method", METHODS)) == 0
    return folder


def results(folder: Path) -> tuple[Any, Any]:
    """What must be the same however a run went: the numbers, not the clock."""
    report = json.loads((folder / "results.json").read_text())
    return report["results"], report["differences"]


def samples(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """The lines of each file, without the clock."""
    return {
        path.name: [
            {name: value for name, value in json.loads(line).items() if name != "seconds"}
            for line in path.read_text().splitlines()
        ]
        for path in sorted(folder.glob("samples-*.jsonl"))
    }


def assert_resumes(model: Path, data: Path, folder: Path, whole: Path, *options: Any) -> None:
    """The run in `folder` goes on, to the files and results of the uninterrupted one."""
    options = options or ("--method", METHODS)
    assert main(arguments(model, data, folder, *options, "--resume")) == 0
    assert samples(folder) == samples(whole)
    assert results(folder) == results(whole)


def copy_of(folder: Path, target: Path) -> Path:
    for path in folder.iterdir():
        if path.name != ".lock":
            (target / path.name).write_bytes(path.read_bytes())
    return target
