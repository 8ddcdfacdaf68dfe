"""Let a piece of code run in one folder, with a terminal that is a file and a limit of time."""

from __future__ import annotations

import os
import signal
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from huggingface_hub import constants


class Hang(BaseException):
    """Not an Exception, so that no `except Exception` of a command catches it."""


class WroteOutside(BaseException):
    pass


_allowed: str | None = None  # while a case runs, the one folder that it may write in


def _watch(event: str, arguments: tuple[Any, ...]) -> None:
    """An audit hook, which Python calls before it opens or changes a file."""
    if _allowed is None:
        return
    if event == "open":
        writes = arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        paths = arguments[:1] if writes else ()
    elif event in ("os.rename", "os.link", "os.symlink"):
        paths = arguments[1:2] if event == "os.symlink" else arguments[:2]
    elif event in ("os.mkdir", "os.remove", "os.rmdir", "os.truncate", "os.chmod", "os.utime"):
        paths = arguments[:1]
    else:
        return
    for path in paths:
        if isinstance(path, int):  # a file that is open already
            continue
        parent, name = os.path.split(os.fsdecode(path))
        place = os.path.realpath(path if event == "open" else os.path.realpath(parent) + "/" + name)
        if not (place + os.sep).startswith((_allowed + os.sep, "/dev/", "/proc/")):
            raise WroteOutside(f"{event} {place[:200]}")


sys.addaudithook(_watch)


@contextmanager
def confined(folder: Path, seconds: float) -> Iterator[None]:
    """Make this folder the current one, and the only one to write in; the hub is offline. Code that
    takes more seconds of the processor raises Hang. At the end the current folder, environment,
    warnings and signals are restored."""
    global _allowed
    before, environment, bytecode = os.getcwd(), dict(os.environ), sys.dont_write_bytecode

    def show(*warning: Any, **_: Any) -> None:
        print(warnings.formatwarning(*warning[:4]), file=sys.stderr)

    def ring(*_: object) -> None:
        raise Hang

    handlers = {n: signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGPIPE)}
    handlers[signal.SIGPROF] = signal.signal(signal.SIGPROF, ring)
    offline = constants.HF_HUB_OFFLINE
    constants.HF_HUB_OFFLINE = True
    os.environ["XDG_CACHE_HOME"] = os.devnull  # what is measured of the machine is not kept
    os.chdir(folder)
    _allowed, sys.dont_write_bytecode = os.path.realpath(folder), True
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        with warnings.catch_warnings():
            for category in (UserWarning, RuntimeWarning, FutureWarning):  # those that people see
                warnings.simplefilter("always", category)
            warnings.showwarning = show  # pytest would keep them
            yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        _allowed, sys.dont_write_bytecode = None, bytecode
        for number, handler in handlers.items():
            signal.signal(number, handler)
        os.chdir(before)
        constants.HF_HUB_OFFLINE = offline
        os.environ.clear()
        os.environ.update(environment)


@contextmanager
def terminal(number: int, path: Path, encoding: str) -> Iterator[None]:
    """Descriptor 1 or 2 and Python's stream on it, into a file: native code writes there too."""
    name, errors = {1: ("stdout", "strict"), 2: ("stderr", "backslashreplace")}[number]
    before, stream = os.dup(number), getattr(sys, name)
    stream.flush()
    target = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(target, number)
    os.close(target)
    new = open(number, "w", encoding=encoding, errors=errors, closefd=False)  # noqa: SIM115
    setattr(sys, name, new)
    try:
        yield
    finally:
        with suppress(OSError):  # a full disk
            new.close()
        setattr(sys, name, stream)
        os.dup2(before, number)
        os.close(before)
