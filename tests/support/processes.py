"""Processes forked from one that has imported the large libraries, but not the package: a test that
needs many does not wait for each of them to import torch."""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch
from torch.distributed import TCPStore

from minise.commands.cli import main

_METHODS = multiprocessing.get_all_start_methods()
_METHOD = "forkserver" if "forkserver" in _METHODS else "spawn"
PROCESSES: Any = multiprocessing.get_context(_METHOD)
PROCESSES.set_forkserver_preload(
    [
        *("torch.distributed.rendezvous", "pytest", "tokenizers", "safetensors.torch", "jinja2"),
        *("scipy.optimize", "sklearn.linear_model", "matplotlib.figure", "filelock"),
    ]
)

DEADLINE = 150  # seconds, for processes that wait for each other


def variables(rank: int, count: int, port: int = 29500) -> dict[str, str]:
    """The environment variables that torchrun sets for a process."""
    values = {
        **{"MASTER_ADDR": "localhost", "MASTER_PORT": port, "WORLD_SIZE": count, "RANK": rank},
        **{"LOCAL_RANK": rank, "TORCHELASTIC_RUN_ID": "team", "TORCHELASTIC_RESTART_COUNT": 0},
        "TORCHELASTIC_USE_AGENT_STORE": True,
    }
    return {name: str(value) for name, value in values.items()}


class Team:
    """Processes with the variables that torchrun sets, each on one thread. Their output is stored
    in `folder`. This process has the store that otherwise torchrun's agent has."""

    def __init__(
        self,
        count: int,
        folder: Path,
        run: Callable[..., object],
        *arguments: object,
        missing: int = 0,  # of `count`, the last ones, which are never started
    ):
        self.folder = folder
        self.store: TCPStore | None = TCPStore(
            "localhost", 0, is_master=True, wait_for_workers=False
        )
        self.processes = []
        for rank in range(count - missing):
            texts = variables(rank, count, self.store.port)
            self.processes.append(
                _started({**os.environ, **texts}, folder / f"output-{rank}", run, arguments)
            )

    def join(self, of: Sequence[int] | None = None) -> list[int | None]:
        """The exit codes, at the end of all processes or of some; then the others are killed. None
        of one that did not end in time."""
        deadline = time.monotonic() + DEADLINE
        for rank, process in enumerate(self.processes):
            if of is None or rank in of:
                process.join(max(0.0, deadline - time.monotonic()))
        codes = [process.exitcode for process in self.processes]
        for process in self.processes:
            process.kill()
        return codes

    def output(self, stream: str) -> str:
        """The output of all processes on "out" or "err", in the order of their ranks."""
        paths = [self.folder / f"output-{rank}-{stream}" for rank in range(len(self.processes))]
        return "".join(path.read_text() for path in paths)


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
