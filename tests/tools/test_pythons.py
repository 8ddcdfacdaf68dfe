"""tools/pythons.py runs the README's commands with each Python. The Pythons are stand-ins."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tools import pythons

# What `python -c ...` and `python install.py ...` do. .venv/bin/python stands for pytest.
STAND_IN = """#!/bin/sh
if [ "$1" = -c ]; then echo 3 {minor} 3.{minor}.5; exit; fi
echo "$@" >> {calls}
if [ "$2" = "{refused}" ]; then echo "pip says no"; exit 1; fi
mkdir -p .venv/bin
printf '#!/bin/sh\\necho Ottawa\\n' > .venv/bin/minise
printf '#!/bin/sh\\ncat here\\necho "{tests}"\\nexit {status}\\n' > .venv/bin/python
chmod +x .venv/bin/minise .venv/bin/python
"""

pytestmark = pytest.mark.skipif(not shutil.which("bash"), reason="needs bash")


class Machine:
    """A tree under git, and a folder of stand-ins that is the PATH beside the system's programs."""

    def __init__(self, folder: Path) -> None:
        self.tree, self.bin, self.calls = folder / "tree", folder / "bin", folder / "calls"
        self.tree.mkdir()
        self.bin.mkdir()
        for name in ("README.md", "pyproject.toml"):
            shutil.copy(pythons.ROOT / name, self.tree)
        (self.tree / ".gitignore").write_text("built\n")
        (self.tree / "built").write_text("not for a newcomer")
        (self.tree / "here").write_text("a file of the tree\n")
        subprocess.run(["git", "init", "-q"], cwd=self.tree, check=True)

    def add(
        self, minor: int, tests: str = "7 passed in 1.2s", status: int = 0, refused: str = "-"
    ) -> Path:
        path = self.bin / f"python3.{minor}"
        text = STAND_IN.format(
            minor=minor, calls=self.calls, refused=refused, tests=tests, status=status
        )
        path.write_text(text)
        path.chmod(0o755)
        return path


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    made = Machine(tmp_path)
    monkeypatch.setattr(pythons, "ROOT", made.tree)
    found = shutil.which
    # Only the stand-ins are found by name, whatever Pythons the machine has.
    monkeypatch.setattr(
        pythons.shutil,
        "which",
        lambda name: found(name, path=str(made.bin)) or (found(name) if os.sep in name else None),
    )
    return made


def rows(capsys) -> list[list[str]]:
    """The cells of the table, without its seconds."""
    lines = capsys.readouterr().out.rpartition("|---|\n")[2].splitlines()
    return [re.split(r" ?\| ?", line)[1:-2] for line in lines]


def test_each_python_runs_both_blocks_in_a_clean_copy(machine: Machine, capsys) -> None:
    machine.add(11)
    machine.add(13)
    assert pythons.main([]) == 0
    assert rows(capsys) == [
        ["3.11.5", "yes", "7 passed in 1.2s"],
        ["3.13.5", "yes", "7 passed in 1.2s"],
    ]
    assert machine.calls.read_text() == "install.py\ninstall.py test eval\n" * 2
    assert not (machine.tree / ".venv").exists()


def test_the_copy_has_the_files_that_git_knows_or_would_add(
    machine: Machine, tmp_path: Path
) -> None:
    pythons.copy_tree(tmp_path / "copy")
    names = {path.name for path in (tmp_path / "copy").iterdir()}
    assert names == {"README.md", "pyproject.toml", ".gitignore", "here"}


def test_a_python_that_fails_has_its_reason_in_the_table_and_the_others_go_on(
    machine: Machine, capsys
) -> None:
    machine.add(10, refused="test")
    machine.add(11, tests="2 failed, 5 passed in 3s", status=1)
    machine.add(12)
    assert pythons.main([]) == 1
    assert rows(capsys) == [
        ["3.10.5", "no: pip says no", "not run"],
        ["3.11.5", "yes", "2 failed, 5 passed in 3s"],
        ["3.12.5", "yes", "7 passed in 1.2s"],
    ]


def test_a_command_that_does_not_end_is_stopped(
    machine: Machine, capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = machine.add(11)
    python.write_text(python.read_text().replace("mkdir", "sleep 1000\nmkdir"))
    monkeypatch.setattr(pythons, "SECONDS", 0.5)
    assert pythons.main([]) == 1
    assert rows(capsys) == [["3.11.5", "no: stopped after 0.5 s", "not run"]]


def test_a_python_that_does_not_start_or_calls_itself_another_is_left_out(
    machine: Machine, capsys
) -> None:
    machine.add(11).write_text("#!/bin/sh\nexit 127\n")
    machine.add(12).rename(machine.bin / "python3.13")
    machine.add(15)  # pyproject.toml does not name it
    assert pythons.main([]) == 0
    out = capsys.readouterr().out
    assert "python3.10 is not on PATH\npython3.11 does not start\n" in out
    assert "python3.13 does not start" in out
    assert not machine.calls.exists()


def test_a_path_is_tried_whatever_its_version(machine: Machine, capsys) -> None:
    path = machine.add(15).rename(machine.tree.parent / "mine")
    assert pythons.main([str(path)]) == 0
    assert [row[0] for row in rows(capsys)] == ["3.15.5"]
    with pytest.raises(SystemExit) as stop:
        pythons.main([str(machine.tree / "nothing")])
    assert stop.value.code == 2
    assert capsys.readouterr().err.endswith("nothing is no Python that starts\n")


def test_with_ends_and_others_no_python_is_run_twice(
    machine: Machine, capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    for minor in (10, 12, 13):
        machine.add(minor)
    assert pythons.main(["--ends"]) == 0
    assert [row[0] for row in rows(capsys)] == ["3.10.5", "3.13.5"]
    monkeypatch.setattr(sys, "version_info", (3, 13, 0))
    assert pythons.main(["--ends", "--others"]) == 0
    assert [row[0] for row in rows(capsys)] == ["3.10.5"]
    (machine.bin / "python3.10").unlink()
    (machine.bin / "python3.12").unlink()
    machine.calls.unlink()
    assert pythons.main(["--ends", "--others"]) == 0
    assert not machine.calls.exists()


def test_the_readme_has_the_two_blocks_and_promises_the_oldest() -> None:
    first, second = pythons.commands()
    assert first.startswith("python3 install.py ")
    assert second.startswith("python3 install.py test eval ")
    assert "pytest" in second
    oldest = ".".join(map(str, pythons.promised()[0]))
    assert f"Python {oldest} " in (pythons.ROOT / "README.md").read_text(encoding="utf-8")
