"""What a command tells the person at the terminal: messages on stderr, and the end by Ctrl-C."""

import os
import signal
import sys
from contextlib import suppress

from minise.errors import printable, shorten


def say(text: str) -> None:
    """Print one line on stderr. Text of several lines is joined, and what a terminal could take for
    a command is escaped."""
    line = shorten(printable(" ".join(text.split())), 390)
    with suppress(OSError):  # nobody can be told
        print(f"minise: {line}", file=sys.stderr)


def end_on_interrupt() -> None:
    """Let Ctrl-C end the process at once, with one line and status 130. An exception instead could
    get lost, or be shown by a library that is being imported. Nothing needs to be cleaned up: the
    files of a run are whole at any instant. Where Ctrl-C is ignored (nohup) it stays ignored."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end)


def _end(number: int, frame: object) -> None:
    with suppress(OSError):
        if os.isatty(2):
            os.write(2, b"\n")  # a progress bar may stand in the line
        os.write(2, b"minise: stopped\n")
    os._exit(130)
