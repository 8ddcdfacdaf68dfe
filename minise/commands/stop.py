"""What Ctrl-C and SIGTERM do: end the program at once, with one line at most and no traceback.

Nothing is cleaned up, as after a kill: every file of a run is whole at any instant. An exception
instead could get lost, or be shown by a library that is being imported at that moment.
"""

import os
import signal

words = ""  # the message on stderr


def install() -> None:
    """Handle the signals of this process, unless the process that started it ignores them."""
    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _end)


def _end(number: int, frame: object) -> None:
    try:
        if words:
            # On a terminal there may be a progress bar, and another one below.
            start = "\n\x1b[J" if os.name != "nt" else "\n\n"
            line = start * os.isatty(2) + f"minise: {words}\n"
            os.write(2, line.encode())
    finally:
        os._exit(128 + number)
