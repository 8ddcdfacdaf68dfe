"""MKL's strict mode, which the command line sets on Intel's processors, and the library does not.

MKL reads MKL_CBWR at its first product, so it is set before torch is imported.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from minise.exact import strict

ROOT = Path(__file__).parents[2]
START = """
import sys
from minise.exact import strict
strict.is_intel = lambda: {intel}
import minise.__main__
assert "torch" not in sys.modules
import os, torch
print(os.environ.get("MKL_CBWR"))
"""


def start(intel: bool, **variables: str) -> str:
    """What a process sees after its start on such a processor."""
    environment = {name: v for name, v in os.environ.items() if name != strict.VARIABLE}
    command = [sys.executable, "-c", START.format(intel=intel)]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=environment | variables,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


def test_strict_mode_is_set_only_on_processors_of_intel() -> None:
    assert start(intel=True) == "AUTO,STRICT"
    assert start(intel=False) == "None"


def test_a_value_set_by_the_user_is_not_changed() -> None:
    assert start(intel=True, MKL_CBWR="COMPATIBLE") == "COMPATIBLE"
    assert start(intel=True, MKL_CBWR="") == ""


def test_the_maker_of_the_processor_is_read_from_proc_cpuinfo(monkeypatch, tmp_path: Path) -> None:
    for name, expected in (("GenuineIntel", True), ("AuthenticAMD", False)):
        path = tmp_path / name
        path.write_text(f"processor\t: 0\nvendor_id\t: {name}\n")
        monkeypatch.setattr("builtins.open", lambda _, path=path: path.open())
        assert strict.is_intel() is expected


def test_without_proc_the_name_that_the_system_gives_is_used(monkeypatch) -> None:
    def missing(_: str) -> None:
        raise FileNotFoundError

    monkeypatch.setattr("builtins.open", missing)
    monkeypatch.setenv("PROCESSOR_IDENTIFIER", "Intel64 Family 6 Model 143, GenuineIntel")
    assert strict.is_intel()
    monkeypatch.setenv("PROCESSOR_IDENTIFIER", "ARMv8")
    assert not strict.is_intel()


def test_importing_the_library_does_not_change_the_environment() -> None:
    code = (
        "import os; before = dict(os.environ)\n"
        "from minise.exact import strict; strict.is_intel = lambda: True\n"
        "import minise; minise.load('weights/tiny-llama')\n"
        "assert dict(os.environ) == before"
    )
    environment = {name: v for name, v in os.environ.items() if name != strict.VARIABLE}
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, check=True)
