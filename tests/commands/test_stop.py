"""Signals: they end a command with one line or silence, and with the right exit status."""

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

ROOT = Path(__file__).parents[2]

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
def test_a_signal_at_any_instant_prints_nothing_or_one_line(case: int, tmp_path: Path) -> None:
    draw = random.Random(f"signals {case}")
    number, status = draw.choice([(signal.SIGINT, 130), (signal.SIGTERM, 143)])
    process = started(*LONG, tmp_path)
    time.sleep(draw.choice([0.3, 3.0]) * draw.random())  # while it imports, loads and asks
    process.send_signal(number)
    out, err = process.communicate()
    assert (process.returncode, out) == (status, "")
    assert err in ("", STOPPED)


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_after_a_signal_while_questions_are_asked_the_message_says_how_to_resume(
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


def test_a_signal_that_was_ignored_at_the_start_stays_ignored() -> None:
    """As `nohup` and the `&` of a shell need it."""
    code = (
        "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); import minise.__main__; "
        "assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN; "
        "assert callable(signal.getsignal(signal.SIGTERM))"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


@pytest.mark.skipif(sys.platform == "win32", reason="a terminal of POSIX")
def test_on_a_terminal_the_message_has_a_line_without_bars(tmp_path: Path) -> None:
    """Two bars may stand there: the cursor is in the upper one."""
    terminal, its_end = os.openpty()
    code = "import os; from minise.commands import stop; stop.words = 'stopped'; stop._end(2, None)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, stderr=its_end)
    assert done.returncode == 130
    assert os.read(terminal, 100) == b"\r\n\x1b[Jminise: stopped\r\n"
    os.close(terminal)
    os.close(its_end)
