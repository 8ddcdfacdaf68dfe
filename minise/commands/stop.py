"""What Ctrl-C and SIGTERM do: end the program at once, with one line at most and no traceback.

Nothing is tidied up, as after a kill: every file of a run is whole at any instant. An exception
instead, wherever the program happens to be, could be lost or shown by a library that is just being
imported.
"""

import os
import signal

words = ""  # what is said then


def install() -> None:
    """Handle the signals of this process, if whoever started it does not have them ignored."""
    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _end)


def _end(number: int, frame: object) -> None:
    try:
        if words:
            line = "\n" * os.isatty(2) + f"minise: {words}\n"  # a progress bar may stand there
            os.write(2, line.encode())
    finally:
        os._exit(128 + number)
