"""`python -m minise`, and the command `minise`."""

import os
import sys

from minise.commands import stop

stop.install()  # before the imports below, which take a while

from minise.exact import strict  # noqa: E402

strict.ask_for()  # before torch is imported
# Threads that wait for each other for long would take the time of other work, and of the thread
# that they wait for: beside four busy processes two threads take three times as long.
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")
if "TORCHELASTIC_RUN_ID" in os.environ:  # torch prints many lines when another process is gone
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")

from minise.commands.cli import main  # noqa: E402


def run() -> int:
    """Run the command line of this process and return its exit status."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:  # closed: a file of a run would take the number, and get what is printed
            os.open(os.devnull, os.O_RDWR)
    sys.stdin = sys.stdin or open(0, closefd=False)  # noqa: SIM115
    sys.stderr = sys.stderr or open(2, "w", closefd=False)  # noqa: SIM115
    if sys.stdout is None:
        print("minise: standard output is closed; redirect it to a file", file=sys.stderr)
        return 2
    return main()


if __name__ == "__main__":
    sys.exit(run())
