"""Kill an evaluation many times, resume it each time, and compare its end with an unbroken run's.

    python -m tools.kill            100 kills (SIGKILL, which no program can catch)
    python -m tools.kill --kills 10 --seed 3

The first kill of a run is before or after one of its calls of fsync, replace or truncate: each of
them in turn, then at random instants. The run that goes on is killed too: among its first calls,
where torn lines are cut, or at a random instant. Then it runs to its end. Samples and results.json
must be equal to an unbroken run's bit for bit. The clock, the command and the output path may
differ.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from minise.commands.cli import main as minise_main
from minise.loading.plugin import load_extra
from tests.support.processes import PROCESSES
from tests.support.tiny import FAMILIES, write_checkpoint

CALLS = ("fsync", "replace", "truncate")
AT_AN_INSTANT = "random instant"
METHODS = "standard,self-ensemble,vector-scaling(folds=2)"  # the last is fitted on the first
Point = tuple[int, bool]  # the number of the call, counted from 1, and whether it has returned


def outcome(folder: Path) -> dict[str, Any]:
    """All that a run leaves and that must not depend on how it went, by the names of its files."""
    samples: dict[str, Any] = {
        path.name: [
            {name: value for name, value in json.loads(line).items() if name != "seconds"}
            for line in path.read_text(encoding="utf-8").splitlines()
        ]
        for path in folder.glob("samples-*.jsonl")
    }
    results = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    del results["timing"]
    for name in ("wall_seconds", "command"):
        del results["config"][name]
    return {**samples, "results.json": results}


class Runs:
    """One evaluation of a tiny model, run in as many folders as it takes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.model = write_checkpoint(folder / "model", FAMILIES["llama"])
        # The first process imports what is imported late; the second gives the time.
        self.run(folder / "unmeasured")
        began = time.perf_counter()
        assert self.run(folder / "whole") == 0
        self.seconds = time.perf_counter() - began
        self.calls = self.last_calls()
        self.whole = outcome(folder / "whole")

    def last_calls(self) -> list[str]:
        """The calls of the last run, to its end or to the one at which it died."""
        return (self.folder / "calls").read_text().split()

    def run(self, output: Path, at: Point | None = None, after: float | None = None) -> int | None:
        """Start or go on with a run: to its end, to a call, or for some seconds. Its exit code,
        negative where a signal ended it."""
        arguments = ["eval", "--model", self.model, "--task", "miniature", "--questions", 8]
        arguments += ["--method", METHODS, "--group-size", 2, "--trials", 2]
        arguments += ["--output-path", output, "--resume"]
        texts = [str(argument) for argument in arguments]
        child = PROCESSES.Process(target=_run_in_child, args=(texts, at, self.folder / "calls"))
        child.start()
        child.join(after)
        child.kill()
        child.join()
        return child.exitcode


def _run_in_child(arguments: list[str], at: Point | None, calls_file: Path) -> None:
    """In a process of its own: run a command, die at the call `at`, write the calls till then."""
    torch.set_num_threads(1)
    tqdm.set_lock(threading.RLock())  # its own lock outlives a process that is killed
    # Drawing takes most of a run's time, and pictures are not compared.
    figure = load_extra("matplotlib.figure").Figure
    figure.savefig = lambda self, path, **options: path.write_bytes(b"")
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    calls: list[str] = []

    def counted(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments_of_call: Any, **named: Any) -> Any:
            calls.append(name)
            number = len(calls)
            die_at((number, False))
            result = real(*arguments_of_call, **named)
            die_at((number, True))
            return result

        return call

    def die_at(point: Point) -> None:
        if at == point:
            calls_file.write_text(" ".join(calls))
            os.kill(os.getpid(), signal.SIGKILL)

    for name in CALLS:
        setattr(os, name, counted(name, getattr(os, name)))
    status = minise_main(arguments)
    calls_file.write_text(" ".join(calls))
    sys.exit(status)


def kill(runs: Runs, kills: int, seed: int = 0) -> Iterator[tuple[str, bool]]:
    """Kill runs: for each kill where it was, and whether the run's end was equal all the same."""
    draw = random.Random(f"kills/{seed}")
    points = [(n, done) for n in range(1, len(runs.calls) + 1) for done in (False, True)]
    # In a random order, in which what is rare comes early: few kills meet every kind of call.
    names = runs.calls
    points.sort(key=lambda point: -names.count(names[point[0] - 1]) * draw.random())
    done = story = 0
    while done < kills:
        story += 1
        output = runs.folder / f"killed-{story}"
        first = points.pop() if points else None
        second = (draw.choice((1, 1, 2, 3)), draw.random() < 0.5) if draw.random() < 0.5 else None
        places: list[str] = []
        for at in (first, second):
            instant = None if at else runs.seconds * draw.random()
            if runs.run(output, at, instant) == -signal.SIGKILL and done + len(places) < kills:
                places.append(runs.last_calls()[-1] if at else AT_AN_INSTANT)
            for path in output.glob("samples-*.jsonl"):  # as a write would leave it if it were cut
                if draw.random() < 0.3:
                    os.truncate(path, max(0, path.stat().st_size - 7))
        equal = runs.run(output) == 0 and outcome(output) == runs.whole
        yield from ((place, equal) for place in places)
        done += len(places)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="minise-kill-") as folder:
        runs = Runs(Path(folder))
        kills = list(kill(runs, args.kills, args.seed))
    places = Counter(place for place, _ in kills)
    different = sum(not equal for _, equal in kills)
    counts = ", ".join(f"{count} at {place}" for place, count in sorted(places.items()))
    print(f"{len(kills)} kills ({counts}): {different} of them with a different end")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
