"""MKL's strict mode, which the command line sets on Intel's processors, and the library does not.

MKL reads MKL_CBWR at its first product, so it is set before torch is imported.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from minise.lab.equal_bits import strict

ROOT = Path(__file__).parents[3]
START = """
import sys
from minise.lab.equal_bits import strict
strict.ask_for = lambda: sys.exit("torch" in sys.modules)
import minise.__main__
sys.exit("it never asked")
"""


@pytest.mark.parametrize(
    ("intel", "before", "after"),
    [
        (True, None, "AUTO,STRICT"),
        (False, None, None),
        (True, "COMPATIBLE", "COMPATIBLE"),  # a user's value is not changed
        (True, "", ""),
    ],
)
def test_strict_mode_is_set_only_on_processors_of_intel(
    monkeypatch: pytest.MonkeyPatch, intel: bool, before: str | None, after: str | None
) -> None:
    monkeypatch.setenv(strict.VARIABLE, "x")  # put back afterwards
    monkeypatch.delenv(strict.VARIABLE)
    if before is not None:
        monkeypatch.setenv(strict.VARIABLE, before)
    monkeypatch.setattr(strict, "is_intel", lambda: intel)
    strict.ask_for()
    assert os.environ.get(strict.VARIABLE) == after


def test_the_command_line_asks_for_equal_bits_alone_and_before_torch_is_imported() -> None:
    never, asked = 1, 0
    for words, status in (([], never), (["--equal-bits"], asked)):
        command = [sys.executable, "-c", START, *words]
        assert subprocess.run(command, cwd=ROOT, stderr=subprocess.DEVNULL).returncode == status


def test_the_library_never_asks() -> None:
    asking = [
        path.name
        for path in (ROOT / "minise").rglob("*.py")
        if "strict MKL" in path.read_text(encoding="utf-8")
    ]
    assert sorted(asking) == ["__main__.py", "by_name.py"]


def test_the_maker_of_the_processor_is_read_from_proc_cpuinfo(monkeypatch, tmp_path: Path) -> None:
    for name, expected in (("GenuineIntel", True), ("AuthenticAMD", False)):
        path = tmp_path / name
        path.write_text(f"processor\t: 0\nvendor_id\t: {name}\n")
        monkeypatch.setattr("builtins.open", lambda _, path=path: path.open())
        assert strict.is_intel() is expected


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({}, "10000"),
        ({"GOMP_SPINCOUNT": "7"}, "7"),
        ({"OMP_WAIT_POLICY": "ACTIVE"}, "None"),
        ({"words": "ask --equal-bits"}, "10000 AUTO,STRICT"),
        ({"words": "ask --equal-bits", "MKL_CBWR": "AVX2"}, "10000 AVX2"),
        ({"MKL_CBWR": "AVX2"}, "10000 AVX2"),
    ],
)
def test_what_torch_reads_is_set_before_it_is_imported(before: dict[str, str], after: str) -> None:
    """MKL is strict where equal bits are asked for, and not otherwise."""
    code = (
        "import os, sys\n"
        f"sys.argv[1:] = {before.get('words', 'ask').split()}\n"
        "from minise.lab.equal_bits import strict\n"
        "strict.is_intel = lambda: True\n"
        "import minise.__main__\n"
        "assert 'torch' not in sys.modules\n"
        "print(os.environ.get('GOMP_SPINCOUNT'), os.environ.get('MKL_CBWR'))"
    )
    names = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY", "MKL_CBWR")
    free = {name: value for name, value in os.environ.items() if name not in names}
    out = subprocess.check_output([sys.executable, "-c", code], cwd=ROOT, env=free | before)
    assert out.decode().strip() == (after if " " in after else f"{after} None")
