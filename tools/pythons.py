"""Run the README's commands with every Python found, each in a clean copy of the tree.

    python -m tools.pythons                   each version of pyproject.toml that is on PATH
    python -m tools.pythons DIR/python3.14    and this one, instead of PATH's of its version
    python -m tools.pythons --ends --others   the oldest and the newest, but not the one at hand

The README's first block installs and asks a question, the second installs what the tests need and
runs them. Both are taken from README.md; only the word python3 before install.py is replaced. The
table has a row for each Python. The exit status is 1 if a command of a Python failed; the end of
what it printed is shown. This file needs no package, so a Python without minise can run it.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
SECONDS = 2 * 3600  # a command that takes longer is stopped
SHOWN = 40  # lines of what a command that failed has printed
Version = tuple[int, int]


class Outcome(NamedTuple):
    """What the commands did with one Python."""

    python: str  # its full version
    installed: str  # "yes" or why not
    tests: str  # pytest's last line, or "not run"
    seconds: float
    failed: bool
    output: str  # of the command that failed, else of the last


def promised() -> list[Version]:
    """The versions that pyproject.toml names, the oldest first."""
    found = re.findall(r"Python :: (\d+)\.(\d+)", (ROOT / "pyproject.toml").read_text("utf-8"))
    return sorted((int(major), int(minor)) for major, minor in found)


def commands() -> tuple[str, str]:
    """The first two blocks of the README, which install and ask, and install and test."""
    readme = (ROOT / "README.md").read_text("utf-8")
    first, second, *_ = re.findall(r"^```sh\n(.*?)^```", readme, re.MULTILINE | re.DOTALL)
    return first, second


def version(python: str) -> tuple[Version, str] | None:
    """(major, minor) and the full version of a Python; None if it does not start."""
    code = "import platform, sys; print(*sys.version_info[:2], platform.python_version())"
    try:
        done = subprocess.run(
            [python, "-c", code], capture_output=True, text=True, timeout=60, check=True
        )
        major, minor, full = done.stdout.split()
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
    return (int(major), int(minor)), full


def find(given: list[str]) -> dict[Version, tuple[str, str]]:
    """The Pythons to try, the oldest first: (path, full version) by (major, minor)."""
    found = {}
    for major, minor in promised():
        python = shutil.which(f"python{major}.{minor}")
        known = version(python) if python else None
        if python and known and known[0] == (major, minor):
            found[known[0]] = (python, known[1])
        else:
            reason = "does not start" if python else "is not on PATH"
            print(f"python{major}.{minor} {reason}", flush=True)
    for path in given:
        python = shutil.which(path)
        known = version(python) if python else None
        if not python or not known:
            print(f"tools.pythons: {path} is no Python that starts", file=sys.stderr)
            raise SystemExit(2)
        found[known[0]] = (os.path.abspath(python), known[1])
    return dict(sorted(found.items()))


def copy_tree(folder: Path) -> None:
    """What git would give a newcomer who clones the tree as it is now."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "-z"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)


def run(command: str, python: str, folder: Path) -> tuple[bool, str]:
    """Paste a block of the README into a shell; whether it succeeded, and what it printed."""
    command = command.replace("python3 install.py", f"{shlex.quote(python)} install.py")
    left_out = ("VIRTUAL_ENV", "PYTHONHOME", "PYTHONPATH")
    variables = {name: value for name, value in os.environ.items() if name not in left_out}
    log = folder.parent / "output"
    with log.open("wb") as output:
        shell = subprocess.Popen(
            ["bash", "-euo", "pipefail", "-c", command],
            cwd=folder, env=variables, stdin=subprocess.DEVNULL, stdout=output,
            stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        note = ""
        try:
            shell.wait(SECONDS)
        except subprocess.TimeoutExpired:
            note = f"\nstopped after {SECONDS} s"
        finally:  # also when this is interrupted: no child goes on
            with contextlib.suppress(ProcessLookupError):
                os.killpg(shell.pid, signal.SIGKILL)
            shell.wait()
    return shell.returncode == 0, log.read_text("utf-8", errors="replace").rstrip() + note


def attempt(python: str, full: str) -> Outcome:
    """Both blocks with one Python, in a folder that is removed afterwards."""
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="minise-pythons-") as scratch:
        folder = Path(scratch, "minise")
        copy_tree(folder)
        installed, tests = "yes", "not run"
        for command in commands():
            succeeded, output = run(command, python, folder)
            last = output.rpartition("\n")[2]
            if "pytest" in command and re.search(r"\d+ (passed|failed|error)", last):
                tests = last.strip("= ")
            elif not succeeded:
                installed = f"no: {last}"
            if not succeeded:
                break
    return Outcome(full, installed, tests, time.monotonic() - start, not succeeded, output)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="tools.pythons", description=(__doc__ or "")[:87])
    parser.add_argument("pythons", nargs="*", help="a Python that is not on PATH")
    parser.add_argument("--ends", action="store_true", help="only the oldest and the newest")
    parser.add_argument("--others", action="store_true", help="not the version at hand")
    options = parser.parse_args(arguments)
    found = list(find(options.pythons).items())
    if options.ends:
        found = found[:1] + found[1:][-1:]
    outcomes = []
    for key, (python, full) in found:
        if options.others and key == sys.version_info[:2]:
            continue
        print(f"python {full}: {python}", flush=True)
        outcomes.append(attempt(python, full))
        if outcomes[-1].failed:
            print(*outcomes[-1].output.splitlines()[-SHOWN:], sep="\n", flush=True)
    print("\n| Python | installed | tests | seconds |\n|---|---|---|---|")
    for row in outcomes:
        print(f"| {row.python} | {row.installed} | {row.tests} | {row.seconds:.0f} |")
    return int(any(row.failed for row in outcomes))


if __name__ == "__main__":
    sys.exit(main())
