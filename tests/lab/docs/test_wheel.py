"""A wheel in a fresh environment: everything that minise needs is in it."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.lab.support.borrowed import borrow

ROOT = Path(__file__).parents[3]


def shown(*command: str | Path, **environment: str) -> str:
    """What a command prints outside of the checkout."""
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        cwd=command[0].parent if isinstance(command[0], Path) else None,
        env={**os.environ, **environment},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.mark.slow
def test_a_wheel_in_a_fresh_environment_answers_with_the_weights_inside_it(tmp_path: Path) -> None:
    """torch and the other packages are borrowed from here, minise itself is not."""
    build = (sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", tmp_path, ROOT)
    done = subprocess.run([str(part) for part in build], capture_output=True, text=True)
    if done.returncode and "hatchling" in done.stderr:
        pytest.skip("the program that builds wheels could not be fetched")
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("minise-*.whl")
    held = set(zipfile.ZipFile(wheel).namelist())
    for path in ROOT.glob("weights/*/*"):
        assert f"minise/{path.relative_to(ROOT).as_posix()}" in held
    assert "minise/lab/evaluation/paper.json" in held
    borrowed = tmp_path / "borrowed"
    borrowed.mkdir()
    borrow(borrowed)
    shown(sys.executable, "-m", "venv", str(tmp_path / "fresh"))
    programs = tmp_path / "fresh" / ("Scripts" if os.name == "nt" else "bin")
    shown(programs / "python", "-m", "pip", "install", "-q", "--no-deps", str(wheel))
    answer = shown(programs / "minise", "ask", PYTHONPATH=str(borrowed))
    assert "\nSelf-Ensemble answers: Ottawa (right)\n" in answer
    where = shown(
        *(programs / "python", "-c", "import minise; print(minise.__file__)"),
        PYTHONPATH=str(borrowed),
    )
    assert Path(where.strip()).is_relative_to(tmp_path / "fresh")
