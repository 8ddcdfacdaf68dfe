"""A cache for one test, and a list of the shapes that are measured."""

from pathlib import Path

import pytest

from minise.lab.equal_bits import probe
from minise.lab.equal_bits.probe import Shape


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder for the files of this machine, and a process that has read nothing yet."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(probe, "_chosen", {})
    return tmp_path / "minise"


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[Shape]:
    """The shapes that are measured, in their order."""
    shapes: list[Shape] = []
    real = probe.measure

    def watch(shape: Shape) -> list[list[int]]:
        shapes.append(shape)
        return real(shape)

    monkeypatch.setattr(probe, "measure", watch)
    return shapes
