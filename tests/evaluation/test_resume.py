"""Resume as a state machine: the states are what a folder can hold when a run is killed.

From 64 states ({none, some, all, torn last line} of three methods' files) and from an empty folder,
a run goes on to the end. What the folder holds before and after each of its steps is a new state,
which is tried in turn, until no new one is found. So all kills of all resumed runs are there. A
step is a call of fsync, replace or truncate.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from minise import load
from minise.data.tasks import Task
from minise.engines import LanguageModel
from minise.evaluation.run import Run, evaluate
from minise.methods.fitted import Fitted
from minise.methods.registry import METHODS, Variant
from minise.methods.sample import Sample
from minise.question import Question
from tests.support.tiny import FAMILIES, write_checkpoint

pytest.importorskip("filelock")

FILES = [f"samples-words-{name}.jsonl" for name in ("standard", "self-ensemble", "copied")]
State = tuple[tuple[str, bytes], ...]  # the names and contents of a folder's files


class Copied(Fitted):
    """A fitted method that takes no time."""

    name = "copied"
    needs = ("standard", "self-ensemble")

    def fit(self, samples: dict[str, list[Sample]]) -> list[Sample]:
        return samples["self-ensemble"]


@dataclass
class Steps:
    """A run in `folder`, and what the folder holds before and after each step."""

    folder: Path
    states: list[State] = field(default_factory=list)

    def step(self, call: Callable[[], Any]) -> Any:
        self.states.append(content(self.folder))
        result = call()
        self.states.append(content(self.folder))
        return result

    def run(self, lm: LanguageModel, run: Run) -> State:
        """Run to the end. What the folder then holds."""
        RUNNING.append(self)
        evaluate(lm, run, self.folder, resume=True)
        RUNNING.remove(self)
        return content(self.folder)


RUNNING: list[Steps] = []


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

    def steps(self, state: State) -> Steps:
        folder = self.folder / str(next(self.numbers))
        for name, text in state:
            folder.mkdir(exist_ok=True)
            (folder / name).write_bytes(text)
        return Steps(folder)

    def end_of(self, state: State) -> State:
        return self.steps(state).run(self.lm, self.run)

    def explore(self) -> None:
        """Find all states, and the end of the run from each."""
        left = list(self.first)
        while left:
            state = left.pop()
            if state in self.ends:
                continue
            steps = self.steps(state)
            self.ends[state] = steps.run(self.lm, self.run)
            left += steps.states
        self.known = set(self.ends)


def _parts(text: bytes) -> list[bytes]:
    """Some lines, all lines, and some lines with a part of the next."""
    lines = text.splitlines(keepends=True)
    return [lines[0], text, lines[0] + lines[1][: len(lines[1]) // 2]]


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """Without a clock, so that whole files can be compared; without statistics, which take most of
    the time."""
    config = {**FAMILIES["llama"], "num_hidden_layers": 1}
    lm = load(write_checkpoint(tmp_path_factory.mktemp("model"), config))

    def numbers(*samples: list[Sample]) -> dict[str, Any]:
        return {"all": [[one.id, one.probabilities] for each in samples for one in each]}

    def stepping(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            if not RUNNING:
                return real(*arguments, **named)
            return RUNNING[-1].step(lambda: real(*arguments, **named))

        return call

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(METHODS, "copied", (f"{__name__}:Copied", "for this test"))
        patch.setattr("minise.evaluation.run.time", SimpleNamespace(time=lambda: 0.0))
        patch.setattr("minise.evaluation.run.peak_bytes", lambda run, device: (None, run()))
        patch.setattr("minise.evaluation.run.summarise", numbers)
        patch.setattr("minise.evaluation.run.difference", numbers)
        patch.setattr("minise.evaluation.asking.timed", lambda ask, device: ask() or 0.0)
        for name in ("fsync", "replace", "truncate"):
            patch.setattr(os, name, stepping(getattr(os, name)))
        machine = Machine(lm, tmp_path_factory.mktemp("runs"))
        machine.explore()
        yield machine


def test_a_run_killed_at_any_step_of_any_resumed_run_ends_at_the_same_bytes(
    machine: Machine,
) -> None:
    assert len(dict(machine.whole)) == 6  # run.json, results.json, predictions and three samples
    assert len(machine.known) > len(machine.first) + 10
    assert {whole_files(end) for end in machine.ends.values()} == {machine.whole}
