"""Kill an evaluation many times, resume it each time, and compare its end with an unbroken run's.

    python -m tools.kill                        100 kills (SIGKILL, which no program can catch)
    python -m tools.kill --processes 1 2 3      of runs of one to three processes
    python -m tools.kill --kills 10 --seed 3

The first kill of a run is before or after a call of one of its processes: fsync, replace, truncate,
or an add or set of the store that processes share. Each call in turn, then at random instants. The
run that goes on, with another number of processes, is killed too: among its first calls, where torn
lines are cut, or at a random instant. Then it runs to its end, again with another number.

If one of several processes is killed, the others are ended as torchrun does, or they are left: then
each has to end by itself, within a deadline. Samples and results.json must be equal to an unbroken
run's bit for bit. The clock, the command and the output path may differ.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from minise.commands.cli import main as minise_main
from minise.loading import parallel
from minise.loading.plugin import load_extra
from tests.support.processes import PROCESSES, Team
from tests.support.tiny import FAMILIES, write_checkpoint

CALLS = ("fsync", "replace", "truncate")
STORE_CALLS = ("add", "set")
AT_AN_INSTANT = "random instant"
METHODS = "standard,self-ensemble,vector-scaling(folds=2)"  # the last is fitted on the first
Point = tuple[int, bool]  # the number of the call, counted from 1, and whether it has returned
DEADLINE = 600.0  # seconds, for processes that wait for each other on a busy machine
SILENCE = 10.0  # seconds, for processes that are left when another one was killed


@dataclass(frozen=True)
class Death:
    """Which of `size` processes dies: at a call, or after some seconds. Are the others left?"""

    size: int = 1
    rank: int = 0
    at: Point | None = None
    after: float | None = None
    leaves: bool = False


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
    """One evaluation of a tiny model, run in as many folders as it takes, by one of the `sizes`
    (numbers of processes)."""

    def __init__(self, folder: Path, sizes: Sequence[int] = (1,)) -> None:
        self.folder, self.sizes = folder, sizes
        self.model = write_checkpoint(folder / "model", FAMILIES["llama"])
        # The first process imports what is imported late; the second gives the time.
        self.run(folder / "unmeasured")
        self.seconds: dict[int, float] = {}
        self.calls: dict[tuple[int, int], list[str]] = {}  # by size and rank
        for size in sizes:
            began = time.perf_counter()
            assert self.run(folder / f"whole-{size}", Death(size)) == 0
            self.seconds[size] = time.perf_counter() - began
            for rank in range(size):
                self.calls[size, rank] = self.last_calls(rank)
        self.whole = outcome(folder / f"whole-{sizes[0]}")
        assert all(outcome(folder / f"whole-{size}") == self.whole for size in sizes)

    def last_calls(self, rank: int = 0) -> list[str]:
        """The calls of a process of the last run, to its end or to the one at which it died."""
        return (self.folder / f"calls-{rank}").read_text().split()

    def run(self, output: Path, death: Death = Death()) -> int | None:
        """Start or go on with a run: to its end, or to a death. The exit code of the process that
        could die, negative where a signal ended it. Raises TimeoutError if a process waits."""
        arguments = ["eval", "--model", self.model, "--task", "miniature", "--questions", 8]
        arguments += ["--method", METHODS, "--group-size", 2, "--trials", 2]
        arguments += ["--output-path", output, "--resume"]
        texts = [str(argument) for argument in arguments]
        todo = (texts, death, self.folder)
        if death.size == 1:
            processes = [PROCESSES.Process(target=_run_in_child, args=todo)]
            processes[0].start()
        else:
            team = Team(death.size, self.folder, _run_in_child, *todo)
            processes = team.processes
        victim = processes[death.rank]
        victim.join(DEADLINE if death.after is None else death.after)
        if death.after is not None:
            victim.kill()
            victim.join()
        if victim.exitcode == -signal.SIGKILL and not death.leaves:
            for process in processes:
                process.terminate()
        deadline = time.monotonic() + DEADLINE
        for process in processes:
            process.join(max(0.0, deadline - time.monotonic()))
        waiting = [process for process in processes if process.exitcode is None]
        for process in waiting:
            process.kill()
        if waiting:
            raise TimeoutError(f"{len(waiting)} of {death.size} processes wait after {death}")
        return victim.exitcode


def _run_in_child(arguments: list[str], death: Death, folder: Path) -> None:
    """In a process of its own: run a command, die if it is the one, write the calls till then."""
    rank = int(os.environ.get("RANK", "0")) if death.size > 1 else 0
    at = death.at if rank == death.rank else None
    calls_file = folder / f"calls-{rank}"
    if death.leaves:
        parallel.SILENCE = SILENCE
    torch.set_num_threads(1)
    tqdm.set_lock(threading.RLock())  # its own lock outlives a process that is killed
    # Drawing takes most of a run's time, and pictures are not compared.
    figure = load_extra("matplotlib.figure").Figure
    figure.savefig = lambda self, file, **options: None
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
    ask = parallel.World._ask

    def ask_counted(world: parallel.World, call: str, *arguments_of_call: Any) -> Any:
        if call not in STORE_CALLS or str(arguments_of_call[0]).startswith("beat/"):
            return ask(world, call, *arguments_of_call)
        return counted(call, ask)(world, call, *arguments_of_call)

    setattr(parallel.World, "_ask", ask_counted)  # noqa: B010
    status = minise_main(arguments)
    calls_file.write_text(" ".join(calls))
    sys.exit(status)


def kill(runs: Runs, kills: int, seed: int = 0) -> Iterator[tuple[str, bool]]:
    """Kill runs: for each kill where it was, and whether the run's end was equal all the same."""
    draw = random.Random(f"kills/{seed}")
    points = [
        (name, Death(size, rank, (number, done)))
        for (size, rank), names in runs.calls.items()
        for number, name in enumerate(names, 1)
        for done in (False, True)
    ]
    # In a random order, in which what is rare comes early: few kills meet every kind of call.
    frequency = Counter(name for name, _ in points)
    points.sort(key=lambda point: -frequency[point[0]] * draw.random())

    def somewhere(at: Point | None) -> Death:
        size = draw.choice(runs.sizes)
        instant = None if at else runs.seconds[size] * draw.random()
        return Death(size, draw.randrange(size), at, instant)

    done = story = 0
    while done < kills:
        story += 1
        output = runs.folder / f"killed-{story}"
        first = points.pop()[1] if points else somewhere(None)
        near = (draw.choice((1, 1, 2, 3)), draw.random() < 0.5) if draw.random() < 0.5 else None
        places: list[str] = []
        ended = True
        for death in (first, somewhere(near)):
            death = replace(death, leaves=death.size > 1 and draw.random() < 0.3)
            try:
                code = runs.run(output, death)
            except TimeoutError as error:
                print(error, file=sys.stderr)
                ended = False
                continue
            if code == -signal.SIGKILL and done + len(places) < kills:
                place = runs.last_calls(death.rank)[-1] if death.at else AT_AN_INSTANT
                places.append(f"{place} ({death.size})")
            for path in output.glob("samples-*.jsonl"):  # as a write would leave it if it were cut
                if draw.random() < 0.3:
                    os.truncate(path, max(0, path.stat().st_size - 7))
        last = Death(draw.choice(runs.sizes))
        equal = ended and runs.run(output, last) == 0 and outcome(output) == runs.whole
        if not equal:
            print(f"different: {first}, {last}", file=sys.stderr)
        shutil.rmtree(output, ignore_errors=True)
        yield from ((place, equal) for place in places)
        done += len(places)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--processes", type=int, nargs="+", default=[1])
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="minise-kill-") as folder:
        runs = Runs(Path(folder), args.processes)
        kills = list(kill(runs, args.kills, args.seed))
    places = Counter(place for place, _ in kills)
    different = sum(not equal for _, equal in kills)
    counts = ", ".join(f"{count} at {place}" for place, count in sorted(places.items()))
    print(f"{len(kills)} kills ({counts}): {different} of them with a different end")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
