"""A run's folder in any state that faults leave it in: the same command goes on, or says why not.

A machine draws steps: it runs shards and joins them, kills a run after some answers, fills the
disk, tears a line, loses a file, puts in one of another run, or lets another process write there.
After each step the lines on the disk are those of an unbroken run, or the first of them.
"""

import json
import os
import shutil
import signal
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import filelock
import pytest

pytest.importorskip("pandas", reason="evaluations need the extra [eval]")
pytest.importorskip("hypothesis", reason="it draws the steps; the extra [test] has it")

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from hypothesis.stateful import run_state_machine_as_test as run_machine

from minise import LocalModel
from minise.errors import InputError
from minise.lab.evaluation import folder as files
from minise.lab.evaluation.request import Run
from minise.lab.evaluation.results import read_run
from minise.lab.evaluation.rows import line_of
from minise.lab.evaluation.run import evaluate
from minise.lab.methods.saved import SavedAnswer
from tests.lab.evaluation.conftest import lines
from tests.lab.evaluation.test_kill import fork
from tests.lab.support.answers import read_answers
from tests.reference.support.cases import cases

Patch = pytest.MonkeyPatch
METHODS = ("standard", "self-ensemble")
Unbroken = dict[tuple[int, int, str], list[dict[str, Any]]]  # number of shards, shard, method
steps, shards = st.integers(0, 5), st.integers(0, 2)


def test_a_folder_in_any_state_goes_on_or_says_why_not(
    lm: LocalModel, make_run: Callable[..., Run], tmp_path: Path, monkeypatch: Patch
) -> None:
    monkeypatch.setattr("minise.lab.evaluation.metrics.RESAMPLES", 2)
    unbroken: Unbroken = {}
    for n in (1, 2, 3):
        for i in range(n):
            folder = tmp_path / str(n)
            evaluate(lm, make_run(*METHODS, shard=(i, n)), folder, print)
            for method in METHODS:
                path = files.samples_path(folder, "words", method, (i, n))
                unbroken[n, i, method] = lines(path)
    run_machine(lambda: Folder(lm, make_run, unbroken, monkeypatch), settings=cases(4))


class Folder(RuleBasedStateMachine):
    """`n` shards write into one folder. A shard is 0 to n - 1, drawn as any number."""

    def __init__(self, lm: Any, make: Callable[..., Run], unbroken: Unbroken, patch: Patch) -> None:
        super().__init__()
        self.lm, self.make, self.patch = lm, make, patch
        self.fail(-1, no_space)
        self.unbroken = unbroken
        self.folder = Path(tempfile.mkdtemp(prefix="minise-states-"))

    @initialize(n=st.integers(1, 3))
    def choose(self, n: int) -> None:
        self.n, self.locks, self.foreign = n, dict[int, Any](), dict[Path, bytes]()

    def teardown(self) -> None:
        for lock in self.locks.values():
            lock.release()
        shutil.rmtree(self.folder)

    def run(self, i: int) -> None:
        evaluate(self.lm, self.make(*METHODS, shard=(i % self.n, self.n)), self.folder, print)

    def path(self, i: int, method: str) -> Path:
        return files.samples_path(self.folder, "words", method, (i % self.n, self.n))

    def wanted(self, i: int, method: str) -> list[dict[str, Any]]:
        return self.unbroken[self.n, i % self.n, method]

    # What is done.

    @rule(i=shards)
    def goes_on(self, i: int) -> None:
        """To the end, unless another process or another run is in the way."""
        refusal = self.refused(lambda: self.run(i))
        if i % self.n in self.locks:
            assert "another process is writing here" in refusal
        elif self.foreign:
            assert "holds another run (dtype" in refusal
        else:
            assert refusal == ""
            for method in METHODS:
                assert lines(self.path(i, method)) == self.wanted(i, method)

    @rule()
    def joins(self) -> None:
        """All answers in the order of the questions, or what is missing and how to get it."""
        known = files.run_files(self.folder)
        if self.foreign and len(known) == 1:
            return  # what the folder holds is the other run
        refusal = self.refused(self.join)
        short = [i for method in METHODS for i in range(self.n) if not self.is_whole(i, method)]
        if not known:
            assert "holds no run" in refusal
        elif self.foreign:
            assert "is no part of the run in" in refusal
        elif short:
            shard = f" --shard {short[0]}/{self.n}" if self.n > 1 else ""
            assert refusal.endswith(f"finish it by the same minise eval{shard}")
        else:
            assert refusal == ""

    def join(self) -> None:
        joined = read_run(self.folder).answers["words"]
        for method, answers in joined.items():
            for i in range(self.n):
                assert bare(answers)[i :: self.n] == self.wanted(i, method)

    def is_whole(self, i: int, method: str) -> bool:
        return len(read_answers(self.path(i, method))) == len(self.wanted(i, method))

    def refused(self, act: Callable[[], None]) -> str:
        """The one line with which it is refused; empty if it is done."""
        refusal = ""
        try:
            act()
        except InputError as error:
            refusal = str(error)
        assert "\n" not in refusal
        return refusal

    # What goes wrong.

    @rule(i=shards, after=steps)
    def is_killed(self, i: int, after: int) -> None:
        """After some answers, or as the first of them is written to the disk."""
        child = fork(lambda: (self.fail(after, killed), self.refused(lambda: self.run(i))))
        os.waitpid(child, 0)

    @rule(i=shards, after=steps)
    def disk_is_full(self, i: int, after: int) -> None:
        """In the middle of a line."""
        self.fail(after, no_space)
        with suppress(DiskFull):
            self.refused(lambda: self.run(i))
        self.fail(-1, no_space)

    def fail(self, after: int, how: Callable[[int], None]) -> None:
        """Let os.fsync fail after so many answers; it does nothing else, for it is slow."""
        left = iter(range(after, -1, -1))
        self.patch.setattr(os, "fsync", lambda file: None if next(left, 1) else how(file))

    @rule(i=shards, method=st.sampled_from(METHODS), rest=st.integers(1, 400))
    def line_is_torn(self, i: int, method: str, rest: int) -> None:
        path = self.path(i, method)
        if path.exists():
            os.truncate(path, max(0, path.stat().st_size - rest))

    @rule(i=shards, method=st.sampled_from(METHODS))
    def file_is_lost(self, i: int, method: str) -> None:
        self.path(i, method).unlink(missing_ok=True)

    @rule(i=shards)
    def another_run_comes_or_goes(self, i: int) -> None:
        there = files.run_files(self.folder)[i : i + 1]
        for path in [] if self.foreign else there:
            content = self.foreign[path] = path.read_bytes()
            path.write_text(json.dumps(json.loads(content) | {"dtype": "float16"}))
            return
        for path in list(self.foreign):
            path.write_bytes(self.foreign.pop(path))

    @rule(i=shards)
    def another_process_comes_or_goes(self, i: int) -> None:
        if lock := self.locks.pop(i % self.n, None):
            lock.release()
        else:
            name = f".lock{files.suffix((i % self.n, self.n))}"
            self.locks[i % self.n] = filelock.FileLock(self.folder / name)
            self.locks[i % self.n].acquire()

    @invariant()
    def what_is_on_the_disk_is_right(self) -> None:
        for i in range(getattr(self, "n", 0)):
            for method in METHODS:
                found = bare(read_answers(self.path(i, method)))
                assert found == self.wanted(i, method)[: len(found)]


def bare(answers: list[SavedAnswer]) -> list[dict[str, Any]]:
    """The answers as `lines` gives them."""
    found = [line_of(answer) for answer in answers]
    for line in found:
        line.pop("seconds")
    return found


def killed(file: int) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class DiskFull(OSError):
    """What the command line makes one line of."""


def no_space(file: int) -> None:
    os.ftruncate(file, os.fstat(file).st_size - 7)
    raise DiskFull
