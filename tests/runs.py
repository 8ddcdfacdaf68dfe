"""A tiny model, thirty questions and runs on them, for the tests of runs and reports."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from minise.cli import main
from tests.tiny import FAMILIES, write_checkpoint

METHODS = "standard,self-ensemble,cyclic,vector-scaling"
WORDS = ["oak", "wren", "zinc", "silk", "rain", "salt", "wool", "clay", "moss", "fern", "lime"]


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
    assert main(arguments(model, data, folder, "--method", METHODS)) == 0
    return folder
