"""What install.py chooses and refuses. test_readme.py runs it."""

import ast
import re
import runpy
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import install

ROOT = Path(__file__).parents[3]
MINORS = re.findall(r"Python :: 3\.(\d+)", (ROOT / "pyproject.toml").read_text("utf-8"))


@pytest.mark.skipif(sys.platform == "win32", reason="the stand-in for nvidia-smi is a script")
@pytest.mark.parametrize(
    ("driver", "build"),
    [
        ("580.95.05\n580.95.05", "cu130"),
        ("525.60", "cu126"),
        ("470.2", "cpu"),
        ("NVIDIA-SMI has failed", "cpu"),
        (None, "cpu"),
    ],
)
def test_the_nvidia_driver_decides_the_build_of_torch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, driver: str | None, build: str
) -> None:
    if driver is not None:
        program = tmp_path / "nvidia-smi"
        program.write_text(f"#!/bin/sh\necho '{driver}'\n")
        program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert install.torch_build() == build


def test_a_version_is_pinned_once_for_each_python_that_is_promised() -> None:
    """Else pip takes one that nothing was tried with, or refuses both."""
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert MINORS[0] in project.partition("requires-python")[2].partition("\n")[0]
    assert (3, int(MINORS[-1])) == install.NEWEST
    pins = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()[1:]
    for minor in MINORS:
        names = [
            requirement.name
            for requirement in map(Requirement, pins)
            if not requirement.marker
            or requirement.marker.evaluate({"python_version": f"3.{minor}"})
        ]
        assert sorted(names) == sorted({Requirement(pin).name for pin in pins})


@pytest.mark.parametrize("version", [(3, 6, 15), (3, int(MINORS[-1]) + 1, 0)])
def test_another_python_is_refused_in_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, version: tuple[int, ...]
) -> None:
    source = ROOT / "install.py"
    ast.parse(source.read_text(encoding="utf-8"), feature_version=(3, 6))
    monkeypatch.setattr(sys, "version_info", version)
    with pytest.raises(SystemExit) as stop:
        runpy.run_path(str(source), run_name="__main__")
    assert stop.value.code == 2
    promised = f"minise needs 3.{MINORS[0]} to 3.{MINORS[-1]}: try python3.12 install.py"
    assert capsys.readouterr().err == f"install.py: this is Python 3.{version[1]}; {promised}\n"
