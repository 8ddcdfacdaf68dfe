"""Resume as a state machine: the states are what a folder can hold when a run is killed.

From 64 states ({none, some, all, torn last line} of three methods' files) and from an empty folder,
one process goes on to the end. What the folder holds before and after each of its steps is a new
state, which is tried in turn, until no new one is found. So all kills of all resumed runs are
there. A step is a call of fsync, replace or truncate, or of the store's add or set. Then threads
stand for two and three processes: they must end at the same bytes, and whatever is killed at
whatever step must leave a state that is known, from which the run ends well.

tools/kill.py does the same with real processes and SIGKILL.
"""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from minise import load
from minise.data.tasks import Task
from minise.engines import LanguageModel
from minise.errors import InputError
from minise.evaluation.run import Run, assist, evaluate
from minise.loading import parallel
from minise.loading.parallel import World
from minise.methods.fitted import Fitted
from minise.methods.registry import METHODS, Variant
from minise.methods.sample import Sample
from minise.question import Question
from tests.support.tiny import FAMILIES, write_checkpoint

pytest.importorskip("filelock")

FILES = [f"samples-words-{name}.jsonl" for name in ("standard", "self-ensemble", "copied")]
State = tuple[tuple[str, bytes], ...]  # the names and contents of a folder's files
DEADLINE = 60  # seconds, for threads that wait for each other


class Copied(Fitted):
    """A fitted method that takes no time."""

    name = "copied"
    needs = ("standard", "self-ensemble")

    def fit(self, samples: dict[str, list[Sample]]) -> list[Sample]:
        return samples["self-ensemble"]


class Killed(BaseException):
    """SIGKILL for a thread."""


@dataclass(frozen=True)
class Death:
    """Where a process dies: before its step of this number, counted from 1, or after it."""

    rank: int
    step: int
    done: bool


@dataclass
class Processes:
    """Threads that stand for the processes of a run in `folder`, with the store that they share. An
    alive one gives another sign of life at each look."""

    folder: Path
    size: int = 1
    death: Death | None = None
    texts: dict[str, bytes] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    steps: list[int] = field(default_factory=list)  # of each process so far
    states: list[State] = field(default_factory=list)  # before and after each step
    ends: dict[int, str] = field(default_factory=dict)  # how each process ended
    killed: bool = False
    at_death: State | None = None
    lock: Any = field(default_factory=threading.RLock)
    looks: Iterator[int] = field(default_factory=itertools.count)

    def step(self, rank: int, call: Callable[[], Any]) -> Any:
        """A step of a process: it may die before or after it."""
        with self.lock:
            self.steps[rank] += 1
            self._reach(Death(rank, self.steps[rank], False))
            result = call()
            self._reach(Death(rank, self.steps[rank], True))
            return result

    def _reach(self, point: Death) -> None:
        if self.is_dead(point.rank):
            raise Killed
        self.states.append(content(self.folder))
        if point == self.death:
            self.killed = True
            raise Killed

    def is_dead(self, rank: int) -> bool:
        return self.killed and self.death is not None and rank == self.death.rank

    def run(self, lm: LanguageModel, run: Run) -> State:
        """Run to the end. What the folder then holds."""
        self.steps = [0] * self.size

        def process(rank: int) -> None:
            store = Store(self, rank) if self.size > 1 else None
            world = World(rank, self.size, store)
            try:
                if rank:
                    assist(lm, run, world)
                else:
                    evaluate(lm, run, self.folder, resume=True, world=world)
                self.ends[rank] = "well"
            except Killed:
                self.ends[rank] = "killed"
            except InputError as error:
                self.ends[rank] = str(error)
                self.texts.setdefault("failed", f"process {rank}: {error}".encode())
            if not self.is_dead(rank):
                self.texts[f"ended/{rank}"] = b""

        threads = [
            threading.Thread(target=process, args=(r,), name=str(r)) for r in range(1, self.size)
        ]
        for thread in threads:
            thread.start()
        FILE_STEPS[threading.get_ident()] = self
        process(0)
        del FILE_STEPS[threading.get_ident()]
        for thread in threads:
            thread.join(DEADLINE)
            assert not thread.is_alive(), f"process {thread.name} waits"
        return content(self.folder)


class Store:
    """One process' connection to the store of all."""

    def __init__(self, processes: Processes, rank: int) -> None:
        self.processes, self.rank = processes, rank

    def add(self, key: str, by: int) -> int:
        def call() -> int:
            counts = self.processes.counts
            counts[key] = counts.get(key, 0) + by
            return counts[key]

        return self.processes.step(self.rank, call)

    def set(self, key: str, text: str) -> None:
        texts = self.processes.texts
        self.processes.step(self.rank, lambda: texts.__setitem__(key, text.encode()))

    def check(self, keys: list[str]) -> bool:
        return keys[0].startswith("beat/") or keys[0] in self.processes.texts

    def get(self, key: str) -> bytes:
        beat, _, rank = key.partition("/")
        if beat != "beat":
            return self.processes.texts[key]
        dead = self.processes.is_dead(int(rank))
        return b"dead" if dead else str(next(self.processes.looks)).encode()


FILE_STEPS: dict[int, Processes] = {}  # by the thread of process 0, which alone changes files


def content(folder: Path) -> State:
    """What is in a folder; one partial file stands for all, whose names are random."""
    files = {}
    for path in folder.iterdir() if folder.exists() else ():
        if path.name != ".lock":
            partial = path.suffix == ".partial"
            files["x.partial" if partial else path.name] = b"" if partial else path.read_bytes()
    return tuple(sorted(files.items()))


def whole_files(state: State) -> State:
    """Without what a killed run left beside its files."""
    return tuple(file for file in state if not file[0].endswith(".partial"))


class Machine:
    """The run, its end, and all states that were found."""

    def __init__(self, lm: LanguageModel, folder: Path) -> None:
        choices = ("oak", "wren", "zinc")
        questions = [Question(f"Number {i}?", choices, id=f"q{i}", answer=i) for i in range(2)]
        variants = [
            Variant("standard", "standard"),
            Variant("self-ensemble", "self-ensemble", {"group_size": 2, "trials": 1}),
            Variant("copied", "copied"),
        ]
        self.lm, self.folder = lm, folder
        self.numbers = itertools.count()
        self.run = Run({0: [Task("words", "words", questions, "here")]}, {"words": variants}, {})
        self.whole = self.end_of(())
        files = dict(self.whole)
        kinds = [[None, *_parts(files[name])] for name in FILES]
        others = {"run.json": files["run.json"]}
        self.first: list[State] = [()]
        for contents in itertools.product(*kinds):
            held = {n: c for n, c in zip(FILES, contents, strict=True) if c is not None}
            self.first.append(tuple(sorted({**others, **held}.items())))
        self.known: set[State] = set()
        self.ends: dict[State, State] = {}

    def processes(self, state: State, size: int = 1, death: Death | None = None) -> Processes:
        folder = self.folder / str(next(self.numbers))
        for name, text in state:
            folder.mkdir(exist_ok=True)
            (folder / name).write_bytes(text)
        return Processes(folder, size, death)

    def end_of(self, state: State) -> State:
        return self.processes(state).run(self.lm, self.run)

    def explore(self) -> None:
        """Find all states, and the end of the run from each."""
        left = list(self.first)
        while left:
            state = left.pop()
            if state in self.ends:
                continue
            processes = self.processes(state)
            self.ends[state] = processes.run(self.lm, self.run)
            left += processes.states
        self.known = set(self.ends)


def _parts(text: bytes) -> list[bytes]:
    """Some lines, all lines, and some lines with a part of the next."""
    lines = text.splitlines(keepends=True)
    return [lines[0], text, lines[0] + lines[1][: len(lines[1]) // 2]]


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """Without a clock, so that whole files can be compared; without statistics, which take most of
    the time; without waits."""
    config = {**FAMILIES["llama"], "num_hidden_layers": 1}
    lm = load(write_checkpoint(tmp_path_factory.mktemp("model"), config))

    def numbers(*samples: list[Sample]) -> dict[str, Any]:
        return {"all": [[one.id, one.probabilities] for each in samples for one in each]}

    def stepping(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            if (processes := FILE_STEPS.get(threading.get_ident())) is None:
                return real(*arguments, **named)
            return processes.step(0, lambda: real(*arguments, **named))

        return call

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(METHODS, "copied", (f"{__name__}:Copied", "for this test"))
        patch.setattr("minise.evaluation.run.time", SimpleNamespace(time=lambda: 0.0))
        patch.setattr("minise.evaluation.run.peak_bytes", lambda run, device: (None, run()))
        patch.setattr("minise.evaluation.run.summarise", numbers)
        patch.setattr("minise.evaluation.run.difference", numbers)
        patch.setattr("minise.evaluation.asking.timed", lambda ask, device: ask() or 0.0)
        patch.setattr(parallel, "PAUSE", parallel.SILENCE / parallel.LOOKS)  # a look at each turn
        pause = time.sleep
        patch.setattr(parallel, "time", SimpleNamespace(sleep=lambda seconds: pause(0.0005)))
        for name in ("fsync", "replace", "truncate"):
            patch.setattr(os, name, stepping(getattr(os, name)))
        machine = Machine(lm, tmp_path_factory.mktemp("runs"))
        machine.explore()
        yield machine


def test_a_run_killed_at_any_step_of_any_resumed_run_ends_at_the_same_bytes(
    machine: Machine,
) -> None:
    assert len(dict(machine.whole)) == 6  # run.json, results.json, predictions and three samples
    assert len(machine.known) > len(machine.first) + 20
    assert {whole_files(end) for end in machine.ends.values()} == {machine.whole}


@pytest.mark.parametrize("size", [2, 3])
def test_several_processes_go_on_from_any_state_to_the_same_bytes(
    machine: Machine, size: int
) -> None:
    for state in machine.first[size::5]:
        processes = machine.processes(state, size)
        assert whole_files(processes.run(machine.lm, machine.run)) == machine.whole
        assert set(processes.ends.values()) == {"well"}
        assert set(processes.states) <= machine.known


@pytest.mark.parametrize(("size", "rank"), [(2, 0), (2, 1), (3, 0), (3, 2)])
def test_when_a_process_dies_at_any_step_all_others_end_and_leave_a_known_state(
    machine: Machine, size: int, rank: int
) -> None:
    state = machine.first[1 + 16 + 0 + 2]
    whole = machine.processes(state, size)
    whole.run(machine.lm, machine.run)
    for number in range(size % 2, 2 * whole.steps[rank], 3):
        death = Death(rank, number // 2 + 1, bool(number % 2))
        processes = machine.processes(state, size, death)
        processes.run(machine.lm, machine.run)
        assert set(processes.states) <= machine.known
        assert len(processes.ends) == size
        for other, end in processes.ends.items():
            if processes.killed and other != rank and end != "well":
                assert f"process {rank} has given no sign of life" in end
