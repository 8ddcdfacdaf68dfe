"""What install.py prints, installs and refuses; pip and the driver are simulated."""

import ast
import io
import re
import runpy
import shutil
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
from packaging.requirements import Requirement

import install

ROOT = Path(__file__).parents[3]


class Space(NamedTuple):
    free: int


class Machine:
    """A machine as install.py sees it."""

    def __init__(self) -> None:
        self.system = "Linux"
        self.driver = ""  # what nvidia-smi prints
        self.pytorch = True  # whether PyTorch's own index answers
        self.network = True
        self.torch = ""  # the version in .venv
        self.works = True  # whether .venv has pip
        self.free = 50 * 10**9
        self.pips: list[str] = []  # what pip was asked to install

    def run(self, *command: str) -> tuple[bool, str]:
        line = " ".join(command)
        if "nvidia-smi" in line:
            return self.driver != "", self.driver
        if "m.version('torch')" in line:
            return self.torch != "", self.torch
        if "-m venv" in line:
            Path(".venv").mkdir()
        if "import pip" in line:
            return self.works, ""
        return self.network or "download" not in line, ""

    def pip(self, *arguments: str) -> bool:
        self.pips.append(" ".join(arguments))
        self.torch = "2.13.0+cpu"
        return True

    def urlopen(self, url: str, timeout: float) -> io.BytesIO:
        if not self.pytorch:
            raise OSError("Name or service not known")
        return io.BytesIO()


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Machine:
    """A clone at the current folder, on a Linux machine with network and without a GPU."""
    clone = tmp_path / "a clone"
    (clone / "minise").mkdir(parents=True)
    for name in ("pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, clone)
    monkeypatch.chdir(clone)
    simulated = Machine()
    monkeypatch.setattr(install, "ROOT", clone)
    monkeypatch.setattr(install, "run", simulated.run)
    monkeypatch.setattr(install, "pip", simulated.pip)
    monkeypatch.setattr(install.platform, "system", lambda: simulated.system)
    monkeypatch.setattr(install.urllib.request, "urlopen", simulated.urlopen)
    monkeypatch.setattr(install.shutil, "disk_usage", lambda path: Space(simulated.free))
    return simulated


SOURCE = "--no-deps --index-url https://download.pytorch.org/whl"
# What the machine is; what pip is asked first; a part of what is said.
MACHINES: dict[str, tuple[dict[str, object], str, str]] = {
    "no GPU": ({}, f"{SOURCE}/cpu torch", "because there is no NVIDIA driver."),
    "a new driver": (
        {"driver": "580.95.05\n580.95.05"},
        f"{SOURCE}/cu130 torch",
        "torch with CUDA, because the NVIDIA driver is 580.95.05.",
    ),
    "an older driver": ({"driver": "525.60"}, f"{SOURCE}/cu126 torch", "the NVIDIA driver is 525"),
    "too old a driver": ({"driver": "470.2"}, f"{SOURCE}/cpu torch", "CUDA 12 needs 525."),
    "no driver": ({"driver": "NVIDIA-SMI has failed"}, f"{SOURCE}/cpu torch", "no NVIDIA driver."),
    "another torch": ({"torch": "2.6.0+cpu"}, f"{SOURCE}/cpu torch", "To download: about 0.3 GB."),
    "no index of PyTorch": ({"pytorch": False}, "-e .", "so pip takes torch from its usual one."),
    "macOS": ({"system": "Darwin"}, "-e .", "Installed. Next: "),
}


@pytest.mark.parametrize("name", MACHINES)
def test_the_machine_decides_the_build_of_torch(machine: Machine, capsys, name: str) -> None:
    facts, first, said = MACHINES[name]
    vars(machine).update(facts)
    install.main([])
    assert (machine.pips[0], machine.pips[-1]) == (first, "-e .")
    assert said in capsys.readouterr().out


def test_extras_are_installed_and_their_size_is_added(machine: Machine, capsys) -> None:
    install.main(["test", "eval"])
    assert machine.pips[-1] == "-e .[test,eval]"
    out = capsys.readouterr().out
    assert "To download: about 0.5 GB. On disk, in .venv: about 1.6 GB.\n" in out
    assert out.endswith(f" ask, {install.PYTHON} -m pytest\n")


def test_a_second_run_installs_nothing(machine: Machine, capsys) -> None:
    install.main(["test"])
    capsys.readouterr()
    machine.pips.clear()
    machine.network = False
    install.main(["test"])
    assert capsys.readouterr().out.startswith("Installed. Next: ")
    assert machine.pips == []


def test_new_extras_or_versions_leave_torch_alone(machine: Machine) -> None:
    install.main([])
    machine.pips.clear()
    install.main(["test"])
    Path("pyproject.toml").write_text(Path("pyproject.toml").read_text() + "# new\n")
    install.main(["test"])
    assert machine.pips == ["-e .[test]", "-e .[test]"]


def refusal(capsys, *extras: str) -> str:
    """Its message on stderr: one line, with status 2."""
    with pytest.raises(SystemExit) as stop:
        install.main(list(extras))
    assert stop.value.code == 2
    err = capsys.readouterr().err
    assert err.startswith("install.py: ")
    assert err.count("\n") == 1
    return err


def test_install_refuses_before_it_creates_a_file(
    machine: Machine, capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "no extra is named 'tset'; there are test, eval, " in refusal(capsys, "tset")
    machine.free = 10**9
    assert "1.0 GB are free on this disk, and 1.4 GB are needed" in refusal(capsys)
    monkeypatch.setattr(install, "find_spec", lambda name: name != "ensurepip")
    assert f"sudo apt install python3.{sys.version_info[1]}-venv" in refusal(capsys)
    monkeypatch.chdir("minise")
    assert "run it at the root of the clone: cd '" in refusal(capsys)
    shutil.rmtree(install.ROOT / "minise")
    assert "minise is not beside this file: clone the repository" in refusal(capsys)
    assert not (install.ROOT / ".venv").exists()
    assert machine.pips == []


def test_install_refuses_without_packages_and_when_pip_fails(
    machine: Machine, capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.network = False
    assert "pip finds no packages: check the network" in refusal(capsys)
    machine.network = True
    monkeypatch.setattr(install, "pip", lambda *arguments: False)
    assert "run the same command again" in refusal(capsys)
    machine.works = False
    assert "the .venv here does not work" in refusal(capsys)


def test_a_python_that_is_too_new_is_refused_before_it_creates_a_file(
    machine: Machine, capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 14, 2))
    install.check([])
    monkeypatch.setattr(sys, "version_info", (3, 15, 0))
    assert "this is Python 3.15, for which the torch of" in refusal(capsys)
    monkeypatch.undo()


def test_a_version_is_pinned_once_for_each_python_that_is_promised() -> None:
    """Else pip takes one that nothing was tried with, or refuses both."""
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    minors = re.findall(r"Python :: 3\.(\d+)", project)
    assert minors[0] in project.partition("requires-python")[2].partition("\n")[0]
    pins = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()[1:]
    for minor in minors:
        names = [
            requirement.name
            for requirement in map(Requirement, pins)
            if not requirement.marker
            or requirement.marker.evaluate({"python_version": f"3.{minor}"})
        ]
        assert sorted(names) == sorted({Requirement(pin).name for pin in pins})


def test_an_old_python_is_refused_in_one_line(capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    source = ROOT / "install.py"
    ast.parse(source.read_text(encoding="utf-8"), feature_version=(3, 6))
    monkeypatch.setattr(sys, "version_info", (3, 6, 15))
    with pytest.raises(SystemExit) as stop:
        runpy.run_path(str(source), run_name="__main__")
    assert stop.value.code == 2
    message = (
        "install.py: this is Python 3.6; minise needs 3.10 or newer: try python3.12 install.py\n"
    )
    assert capsys.readouterr().err == message
