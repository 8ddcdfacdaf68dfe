"""The program that counts faults sees one that is planted."""

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pandas", reason="evaluations need the extra [eval]")
pytest.importorskip("transformers", reason="it tries its loader, too")

ROOT = Path(__file__).parents[3]
# The guard says nothing.
PLANTED = """
import sys
from minise.lab.packing.guard import Guard
Guard.look = lambda self, given: ""
from tools import faults
sys.argv = ["faults", "guards", "--cases", "10"]
sys.exit(faults.main())
"""


def counts(*words: str) -> tuple[int, dict[str, list[int]]]:
    """The status, and of each kind the cases: all, refused, right, wrong, ended in a traceback."""
    done = subprocess.run(
        [sys.executable, *words], cwd=ROOT, capture_output=True, text=True, timeout=900
    )
    rows = {}
    for line in done.stdout.splitlines()[2:]:
        kind, *numbers = line.strip("| ").split(" | ")
        rows[kind] = [int(number) for number in numbers]
    return done.returncode, rows


@pytest.mark.slow
def test_checkpoints_lead_nowhere_and_a_guard_finds_mistakes() -> None:
    status, rows = counts("-m", "tools.faults", "leads", "guards", "--cases", "10")
    assert status == 0
    assert set(rows) == {"leads", "guards"}
    for all_cases, refused, right, wrong, failed in rows.values():
        assert (wrong, failed) == (0, 0)
        assert all_cases == refused + right
        assert refused > 0
        assert right > 0


@pytest.mark.slow
def test_planted_faults_are_counted() -> None:
    status, rows = counts("-c", PLANTED)
    assert status == 1
    for _, _, _, wrong, _ in rows.values():
        assert wrong > 0
