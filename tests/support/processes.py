"""Processes forked from one that has imported the large libraries, but not the package: a test that
needs many does not wait for each of them to import torch."""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import sys
import time
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch

from minise.commands.cli import main

_METHODS = multiprocessing.get_all_start_methods()
_METHOD = "forkserver" if "forkserver" in _METHODS else "spawn"
PROCESSES: Any = multiprocessing.get_context(_METHOD)
PROCESSES.set_forkserver_preload(
    [
        *("pytest", "tokenizers", "safetensors.torch", "jinja2"),
        *("scipy.optimize", "sklearn.linear_model", "matplotlib.figure", "filelock"),
    ]
)

DEADLINE = 150  # seconds, for processes that wait for each other


def alone(
    variables: dict[str, str], folder: Path, run: Callable[..., object], *arguments: object
) -> tuple[int | None, str, str]:
    """A process whose environment is `variables`: its exit code and its output, which is stored in
    `folder`."""
    process = _started(variables, folder / "output", run, arguments)
    process.join()
    return process.exitcode, *(Path(f"{folder / 'output'}-{x}").read_text() for x in ("out", "err"))


def ask_without_waits(arguments: list[str], may_wait: bool) -> int:
    """`minise ask` in which every wait takes no time, or without `may_wait` ends the process."""

    def sleep(seconds: float) -> None:
        if not may_wait:
            sys.exit("waited")

    time.sleep = sleep
    return main(["ask", *arguments])


def _started(
    variables: dict[str, str], path: Path, run: Callable[..., object], arguments: tuple[object, ...]
) -> BaseProcess:
    process = PROCESSES.Process(target=_run_in_child, args=(variables, str(path), run, arguments))
    process.start()
    return process


def _run_in_child(
    variables: dict[str, str], path: str, run: Callable[..., object], arguments: tuple[object, ...]
) -> None:
    os.environ.clear()
    os.environ.update(variables)
    for number, stream in ((1, "out"), (2, "err")):
        with open(f"{path}-{stream}", "w") as file:
            os.dup2(file.fileno(), number)
    faulthandler.dump_traceback_later(DEADLINE - 10)  # of one that waits for ever: where
    torch.set_num_threads(1)
    sys.exit(run(*arguments))
