"""Fixtures that several test files of this folder share."""

from __future__ import annotations

from pathlib import Path

import pytest

from minise.commands.cli import main
from tests.support.runs import arguments, no_drawing


@pytest.fixture(scope="session")
def independent(model: Path, data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("independent")
    options = ("--method", "standard,self-ensemble", "--grouping", "independent")
    with no_drawing():
        assert main(arguments(model, data, folder, *options)) == 0
    return folder
