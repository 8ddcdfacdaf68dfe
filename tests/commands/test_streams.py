"""Signals, and streams that are full or closed: one line or silence, and the right exit status."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from functools import partial
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
    ("line", "said"),
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
def test_closed_and_full_streams_are_no_traceback(line: str, said: str) -> None:
    status, out, err = shell(line)
    assert (status, err) == (0 if "version" in line else 2, said)
    assert out == (f"minise {minise.__version__}\n" if "version" in line else "")


def test_no_file_gets_what_is_printed_where_a_stream_is_closed() -> None:
    """The first file that is opened would take the number of a closed stream."""
    code = "import os; from minise.__main__ import run; run(); print(os.open(os.devnull, 0))"
    for closed in ("0>&-", "2>&-", "0>&- 2>&-"):
        command = f'"{sys.executable}" -c "{code}" --nonsense {closed}'
        done = subprocess.run(["sh", "-c", command], cwd=ROOT, capture_output=True, text=True)
        assert int(done.stdout) > 2


# As the installed command starts, up to where signals are handled.
START = (
    "from minise.commands import stop; stop.install(); print('up', flush=True); "
    "import sys; from minise.__main__ import run; sys.exit(run())"
)


def started(*arguments: object) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", START, *map(str, arguments)],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        # Where the tests run in the background of a shell, they ignore it, and so would this.
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    return process


LONG = ("eval", "--task", "miniature", "--questions", 60, "--method", "self-ensemble", "-o")
STOPPED = "minise: stopped; the same command with --resume goes on\n"


@pytest.mark.parametrize("case", range(10))
def test_a_signal_at_any_instant_is_silence_or_one_line(case: int, tmp_path: Path) -> None:
    draw = random.Random(f"signals {case}")
    number, status = draw.choice([(signal.SIGINT, 130), (signal.SIGTERM, 143)])
    process = started(*LONG, tmp_path)
    time.sleep(draw.choice([0.3, 3.0]) * draw.random())  # while it imports, loads and asks
    process.send_signal(number)
    out, err = process.communicate()
    assert (process.returncode, out) == (status, "")
    assert err in ("", STOPPED)


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_while_questions_are_asked_says_how_to_go_on(
    number: int, status: int, tmp_path: Path
) -> None:
    process = started(*LONG, tmp_path)
    while process.poll() is None and not list(tmp_path.glob("samples-*")):
        time.sleep(0.01)
    process.send_signal(number)
    assert process.communicate() == ("", STOPPED)
    assert process.returncode == status


def test_signals_are_handled_before_anything_is_imported() -> None:
    code = (
        "import os, sys; before = set(sys.modules); import minise.commands.stop; "
        "print(*sorted(set(sys.modules) - before))"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    ours = [name for name in done.stdout.split() if name.startswith("minise")]
    assert ours == ["minise", "minise.commands", "minise.commands.stop"]
    assert not {"argparse", "numpy", "torch"} & set(done.stdout.split())


def test_a_signal_that_is_ignored_stays_ignored() -> None:
    """As `nohup` and the `&` of a shell want it."""
    code = (
        "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); import minise.__main__; "
        "assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN; "
        "assert callable(signal.getsignal(signal.SIGTERM))"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)
