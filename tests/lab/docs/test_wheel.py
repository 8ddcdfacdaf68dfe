"""Wheel and sdist in fresh environments: everything that minise needs is in them."""

import email
import json
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.lab.support.borrowed import borrow

ROOT = Path(__file__).parents[3]
PROGRAMS = "Scripts" if os.name == "nt" else "bin"
ROW = {"documents": [2, 2], "position_ids": [0, 1, 0, 1], "cu_seqlens": [0, 2, 4]}


def shown(*command: str | Path, cwd: Path, **environment: str) -> str:
    """What a command prints that succeeds."""
    done = subprocess.run(
        [str(word) for word in command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=cwd,
        env={**os.environ, **environment},
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The wheel and the sdist."""
    folder = tmp_path_factory.mktemp("built")
    shown(sys.executable, "-m", "venv", "builder", cwd=folder)
    python = folder / "builder" / PROGRAMS / "python"
    fetched = subprocess.run([python, "-m", "pip", "install", "-q", "hatchling"])
    if fetched.returncode:
        pytest.skip("the program that builds wheels could not be fetched")
    shown(python, "-m", "hatchling", "build", "-d", folder / "dist", cwd=ROOT)
    [wheel] = (folder / "dist").glob("minise-*.whl")
    [sdist] = (folder / "dist").glob("minise-*.tar.gz")
    return {"wheel": wheel, "sdist": sdist}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["wheel", "sdist"])
def test_it_answers_verifies_explains_and_checks_outside_of_the_checkout(
    built: dict[str, Path], tmp_path: Path, kind: str
) -> None:
    """torch and the other packages are borrowed from here, minise itself is not."""
    borrowed = tmp_path / "borrowed"
    borrowed.mkdir()
    borrow(borrowed)
    shown(sys.executable, "-m", "venv", "fresh", cwd=tmp_path)
    programs = tmp_path / "fresh" / PROGRAMS
    shown(
        *(programs / "python", "-m", "pip", "install", "-q", "--no-deps", built[kind]),
        cwd=tmp_path,
    )

    def minise(*words: str) -> str:
        return shown(programs / "minise", *words, cwd=tmp_path, PYTHONPATH=str(borrowed))

    assert "usage: minise" in minise("--help")
    assert "\nSelf-Ensemble answers: Ottawa (right)\n" in minise("ask")
    assert "passed" in minise("verify")
    minise("explain", "-o", "page.html")
    assert "What is the capital of Canada?" in (tmp_path / "page.html").read_text("utf-8")
    (tmp_path / "row.json").write_text(json.dumps(ROW))
    assert "equal" in minise("check", "row.json")
    code = "import minise; print(minise.__file__)"
    where = shown(*(programs / "python", "-c", code), cwd=tmp_path, PYTHONPATH=str(borrowed))
    assert Path(where.strip()).is_relative_to(tmp_path / "fresh")


@pytest.mark.slow
def test_the_wheel_holds_weights_and_data_and_its_long_description_has_no_relative_link(
    built: dict[str, Path],
) -> None:
    with zipfile.ZipFile(built["wheel"]) as wheel:
        held = set(wheel.namelist())
        [metadata] = [name for name in held if name.endswith(".dist-info/METADATA")]
        description = email.message_from_bytes(wheel.read(metadata)).get_payload()
    for path in ROOT.glob("weights/*/*"):
        assert f"minise/{path.relative_to(ROOT).as_posix()}" in held
    assert "minise/lab/evaluation/paper.json" in held
    with tarfile.open(built["sdist"]) as sdist:
        held_by_sdist = sdist.getnames()
    assert any("/tools/" in name for name in held_by_sdist)
    assert not any("studies" in name for name in [*held, *held_by_sdist])  # what is ours alone
    links = re.findall(r"\]\(([^)]+)\)|(?:src|href|srcset)=\"([^\"]+)\"", str(description))
    targets = [first or second for first, second in links]
    assert targets
    assert all(target.startswith("https://") for target in targets), targets
