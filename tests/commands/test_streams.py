"""Streams that are full or closed: one line or silence, and the right exit status."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import minise
from tests.support.commands import assert_one_line

ROOT = Path(__file__).parents[2]


def shell(line: str) -> tuple[int, str, str]:
    """What a shell's command does, with MINISE as the program."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    command = line.replace("MINISE", f'"{sys.executable}" -m minise')
    done = subprocess.run(
        ["sh", "-c", command], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device of Linux")
@pytest.mark.parametrize(
    "command", ["ask --trials 1", "ask --trials 1 --json", "--help", "eval --help"]
)
def test_a_full_output_is_one_line(command: str) -> None:
    assert_one_line(*shell(f"MINISE {command} > /dev/full"), ["No space left on device"])


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("MINISE ask --trials 1 >&-", "minise: standard output is closed; redirect it to a file\n"),
        ("MINISE --version 2>&-", ""),
        ("MINISE ask --nonsense 2>&-", ""),
        ("MINISE ask --nonsense 0>&- 2>&-", ""),
        ("MINISE ask --nonsense 2>/dev/full", ""),
        ("MINISE ask --trials 1 0>&- >&- 2>&-", ""),
        ("MINISE ask --trials 1 > /dev/full 2>/dev/full", ""),
    ],
)
def test_closed_and_full_streams_cause_no_traceback(line: str, message: str) -> None:
    status, out, err = shell(line)
    assert (status, err) == (0 if "version" in line else 2, message)
    assert out == (f"minise {minise.__version__}\n" if "version" in line else "")


def test_output_to_a_closed_stream_is_written_into_no_file() -> None:
    """The first file that is opened would take the number of a closed stream."""
    code = "import os; from minise.__main__ import run; run(); print(os.open(os.devnull, 0))"
    for closed in ("0>&-", "2>&-", "0>&- 2>&-"):
        command = f'"{sys.executable}" -c "{code}" --nonsense {closed}'
        done = subprocess.run(["sh", "-c", command], cwd=ROOT, capture_output=True, text=True)
        assert int(done.stdout) > 2
