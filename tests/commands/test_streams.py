"""Streams that are full or closed: one line or silence, and the right exit status."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest

import minise
from tests.support.commands import assert_one_line
from tests.support.processes import alone

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


STREAMS = ("stdin", "stdout", "stderr")
CLOSED = [c for count in (1, 2, 3) for c in itertools.combinations(range(3), count)]


def run_all(closed: Sequence[int], commands: Sequence[Sequence[str]], report: Path) -> None:
    """In a process of its own: run commands with streams closed. Their statuses go to a file."""
    from minise.__main__ import run

    statuses: list[object] = []
    for words in commands:
        for number in closed:
            with suppress(OSError):
                os.close(number)
            setattr(sys, STREAMS[number], None)  # as Python starts then
        sys.argv = ["minise", *words]
        try:
            statuses.append(run())
        except SystemExit as end:  # of --help
            statuses.append(end.code)
    report.write_text(json.dumps(statuses))


@pytest.mark.parametrize("closed", CLOSED, ids=lambda c: "+".join(STREAMS[i] for i in c))
def test_each_command_works_with_closed_streams_or_says_one_line(
    closed: tuple[int, ...], model: Path, tmp_path: Path
) -> None:
    pytest.importorskip("filelock")
    small = ["--model", str(model), "--trials", "1", "--group-size", "2"]
    method = ["--method", "standard", "--questions", "2", "--output-path"]
    commands = [
        ["ask", *small],
        ["ask", *small, "--file", "-"],
        ["explain", *small, "--detail", "low", "-o", str(tmp_path / "page.html")],
        ["verify", *small],
        ["eval", "--task", "-", *small, *method, str(tmp_path / "stdin")],
        ["eval", "--task", "miniature", *small, *method, str(tmp_path / "run")],
        ["report", str(tmp_path / "run")],
        ["tasks"],
    ]
    report = tmp_path / "report.json"
    code, out, err = alone(dict(os.environ), tmp_path, run_all, closed, commands, report)
    assert (code, "Traceback" in err) == (0, False), err
    from_stdin = [words for words in commands if "-" in words]
    expected = [2 if 1 in closed or words in from_stdin else 0 for words in commands]
    assert json.loads(report.read_text()) == expected, err
    lines = [line for line in err.splitlines() if line.startswith("minise: standard ")]
    if 2 in closed:
        assert err == ""
    elif 1 in closed:
        assert lines == ["minise: standard output is closed; redirect it to a file"] * 8
    else:
        assert lines == ["minise: standard input: is empty; " + lines[0].partition("; ")[2]] * 2
    assert bool(out) == (1 not in closed)
