"""Several processes write the same files as one, even if one of them dies; a failure is one
line."""

from __future__ import annotations

import json
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from torch.distributed import TCPStore

from minise import load
from minise.commands.cli import main
from minise.data.tasks import load_tasks
from minise.errors import InputError
from minise.evaluation.run import Run, evaluate
from minise.loading import parallel
from minise.loading.parallel import World
from minise.methods.registry import Variant
from tests.support.commands import assert_one_line, run
from tests.support.processes import Team, variables
from tests.support.runs import METHODS, arguments, results, samples

for module in ("scipy", "sklearn", "matplotlib"):
    pytest.importorskip(module)
pytest.importorskip("torch.distributed")


def assert_same_samples(folder: Path, whole: Path) -> None:
    """In the order of the file, bit for bit."""
    assert samples(folder) == samples(whole)
    assert results(folder) == results(whole)


def test_two_processes_write_what_one_writes(
    model: Path, data: Path, whole: Path, tmp_path: Path
) -> None:
    command = arguments(model, data, tmp_path, "--method", METHODS, "--tokens-per-pass", 500)
    team = Team(2, tmp_path, main, command)
    assert (team.join(), team.output("err")) == ([0, 0], "")
    assert team.output("out").count("written in ") == 1
    assert_same_samples(tmp_path, whole)


def test_a_run_whose_process_died_is_resumed_by_another_number_of_processes(
    model: Path, data: Path, whole: Path, tmp_path: Path
) -> None:
    command = arguments(model, data, tmp_path, "--method", METHODS)
    team = Team(2, tmp_path, main, command)
    while team.processes[0].is_alive() and not (tmp_path / "samples-words-standard.jsonl").exists():
        time.sleep(0.01)
    team.processes[1].kill()
    team.processes[1].join()
    team.processes[0].terminate()  # as torchrun ends the others
    assert 0 not in team.join()
    assert not (tmp_path / "results.json").exists()
    team = Team(3, tmp_path, main, [*command, "--resume"])
    assert team.join() == [0, 0, 0], team.output("err")
    assert_same_samples(tmp_path, whole)


@pytest.mark.parametrize("left", [[], ["standard"], ["self-ensemble"]], ids="+".join)
def test_two_processes_resume_a_run_of_which_some_methods_are_complete(
    model: Path, data: Path, whole: Path, tmp_path: Path, left: list[str]
) -> None:
    """Each process learns that nothing of a method is pending, and none waits for it."""
    folder = tmp_path / "run"
    shutil.copytree(whole, folder)
    (folder / "results.json").unlink()
    for name in left:
        (folder / f"samples-words-{name}.jsonl").unlink()
    team = Team(
        2, tmp_path, main, [*arguments(model, data, folder, "--method", METHODS), "--resume"]
    )
    assert team.join() == [0, 0], team.output("err")
    assert_same_samples(folder, whole)


def test_torchrun_restarts_the_processes_and_they_continue(
    model: Path, data: Path, whole: Path, tmp_path: Path
) -> None:
    mark = tmp_path / "died"
    dies = f'if [ $RANK = 1 ] && mkdir "{mark}"; then sleep 4; kill -9 $$; fi; exec "$@"'
    agent = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--no-python")
    command = arguments(model, data, tmp_path / "run", "--method", METHODS)
    options = ("--nproc-per-node=2", "--max-restarts=1", "sh", "-c", dies, "sh")
    python = (sys.executable, "-m", "minise")
    subprocess.run([*agent, *options, *python, *command], check=True, capture_output=True)
    assert mark.exists()
    assert_same_samples(tmp_path / "run", whole)


MEET = """
import itertools, os, signal, time
from minise import SelfEnsemble
from minise.loading import parallel
calls = itertools.count()
class Mine(SelfEnsemble):
    name = "mine"
    def plan(self, lm, question, seed):
        rank = int(os.environ["RANK"])
        number = next(calls) + (rank > 0)
        if number == 1:  # the first question after the trial of process 0: both ask one
            open(f"FOLDER/asks-{rank}", "w").close()
            while not os.path.exists(f"FOLDER/asks-{1 - rank}"):
                time.sleep(0.01)
            parallel.SILENCE = 3.0
            if rank == VICTIM:
                DEED
        return super().plan(lm, question, seed)
"""


def meeting(model: Path, data: Path, folder: Path, deed: str, victim: int = 1) -> Team:
    """Two processes. One does something when both have begun to ask. From then on the limit of
    silence is short."""
    code = MEET.replace("FOLDER", str(folder)).replace("VICTIM", str(victim))
    path = folder / "meet.py"
    path.write_text(code.replace("DEED", deed))
    methods = f"{path}:Mine,standard"
    return Team(2, folder, main_in, 20, *arguments(model, data, folder, "--method", methods))


def main_in(seconds: float, *words: str) -> int:
    """The command line with another limit of silence."""
    parallel.SILENCE = seconds
    return main(list(words))


STOP = "os.kill(os.getpid(), signal.SIGSTOP)"
DIE = "os.kill(os.getpid(), signal.SIGKILL)"


@pytest.mark.parametrize(("victim", "deed"), [(1, STOP), (1, DIE), (0, DIE)])
def test_a_dead_or_stopped_process_is_one_line_of_another(
    model: Path, data: Path, tmp_path: Path, victim: int, deed: str
) -> None:
    team = meeting(model, data, tmp_path, deed, victim)
    codes = team.join(of=[1 - victim])
    assert (codes[1 - victim], codes[victim]) == (2, -signal.SIGKILL if deed == DIE else None)
    speaker = "" if victim else "process 1: "
    expected = rf"minise: {speaker}process {victim} has given no sign of life for 3 s; .*\n"
    assert re.fullmatch(expected, team.output("err"))


def test_a_process_that_never_comes_is_one_line(model: Path, data: Path, tmp_path: Path) -> None:
    command = arguments(model, data, tmp_path, "--method", "standard")
    team = Team(2, tmp_path, main_in, 2, *command, missing=1)
    assert team.join() == [2]
    assert re.fullmatch("minise: process 1 has given no sign.*\n", team.output("err"))


def test_a_question_that_takes_longer_than_the_limit_is_no_death(
    model: Path, data: Path, tmp_path: Path
) -> None:
    team = meeting(model, data, tmp_path, "time.sleep(5)")
    assert team.join() == [0, 0], team.output("err")


def test_without_the_store_each_process_says_so(model: Path, data: Path, tmp_path: Path) -> None:
    """For example because torchrun was killed. Nobody knows whether process 0 can say it."""
    team = meeting(model, data, tmp_path, "time.sleep(1)")
    for rank in range(2):
        while not (tmp_path / f"asks-{rank}").exists() and team.processes[rank].is_alive():
            time.sleep(0.01)
    team.store = None
    assert team.join() == [2, 2]
    err = team.output("err")  # torch prints warnings of its own, which __main__ turns off
    assert len(re.findall("^minise: .*store that the processes share is gone", err, re.M)) == 2
    assert "Traceback" not in err


MINE = """
import os
from minise import SelfEnsemble
class Mine(SelfEnsemble):
    name = "mine"
    def answer(self, plan, logits):
        if os.environ.get("RANK") == "1":
            raise KeyError("lost")
        return super().answer(plan, logits)
"""


def test_an_error_in_another_process_is_one_line_of_process_0(
    model: Path, data: Path, tmp_path: Path
) -> None:
    path = tmp_path / "mine.py"
    path.write_text(MINE)
    command = arguments(model, data, tmp_path / "out", "--method", f"{path}:Mine")
    team = Team(2, tmp_path, main, command)
    assert team.join()[0] == 2
    err = team.output("err")
    assert err.startswith('minise: process 1: question "q')
    assert err.count("\n") == 1


def test_a_process_that_dies_in_a_sum_of_its_team_is_one_line(
    model: Path, data: Path, tmp_path: Path
) -> None:
    path = tmp_path / "mine.py"
    path.write_text(MINE.replace('raise KeyError("lost")', "os.kill(os.getpid(), 9)"))
    command = arguments(model, data, tmp_path / "out", "--method", f"{path}:Mine")
    team = Team(2, tmp_path, main, [*command, "--tensor-parallel", "2"])
    assert team.join() == [2, -signal.SIGKILL]
    err = team.output("err")
    assert re.fullmatch("minise: the other processes of the team are gone .*\n", err), err


def test_processes_that_would_run_different_models_are_refused(
    model: Path, data: Path, tmp_path: Path
) -> None:
    """For example with another checkpoint of the same name on the second machine."""
    task = load_tasks([str(data)])[0]
    run = Run({0: [task]}, {task.name: [Variant("standard", "standard")]}, {"weights": "a"})
    store = Store()
    other = replace(run, identity={"weights": "b"}).describe()
    store.set("run/1", json.dumps(other))
    with pytest.raises(InputError, match=r"process 1 would run something else .*weights is"):
        evaluate(load(model), run, tmp_path / "out", world=World(0, 2, store))
    assert not (tmp_path / "out").exists()


def test_other_commands_refuse_several_processes(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in variables(0, 2).items():
        monkeypatch.setenv(name, text)
    assert_one_line(*run(capsys, "ask"), ["torchrun is for minise eval", "without it"])
    monkeypatch.setenv("RANK", "1")  # the first process prints it
    assert run(capsys, "ask") == (0, "", "")


EVAL = ("--task", "miniature", "--method", "standard", "--output-path")


@pytest.mark.parametrize("command", ["eval", "ask"])
@pytest.mark.parametrize("name", ["RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"])
@pytest.mark.parametrize("text", [None, "", "two", "-1", "\u0662", "9" * 5000])
def test_a_missing_or_damaged_variable_of_torchrun_is_one_line(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    command: str,
    name: str,
    text: str | None,
) -> None:
    if name == "MASTER_ADDR" and text:
        return  # a name of a machine
    for each, value in variables(1, 2).items():
        monkeypatch.setenv(each, value)
    if text is None:
        monkeypatch.delenv(name)
    else:
        monkeypatch.setenv(name, text)
    words = (
        ["--task", "miniature", "--method", "standard", "--output-path", tmp_path]
        if command == "eval"
        else []
    )
    expected = [f"the variable {name} of torchrun"] if command == "eval" else ["torchrun is for"]
    assert_one_line(*run(capsys, command, *words), expected)


@pytest.mark.parametrize("rank", ["2", "7"])
def test_a_rank_outside_of_the_world_is_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, rank: str
) -> None:
    for name, text in {**variables(0, 2), "RANK": rank}.items():
        monkeypatch.setenv(name, text)
    result = run(
        capsys, "eval", "--task", "miniature", "--method", "standard", "--output-path", tmp_path
    )
    assert_one_line(*result, ["RANK of torchrun is not less than WORLD_SIZE"])


def test_a_store_that_nobody_keeps_is_one_line_of_every_process(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Process 0 cannot be told."""
    with socket.socket() as unused:
        unused.bind(("localhost", 0))
        port = unused.getsockname()[1]
    monkeypatch.setattr(parallel, "SILENCE", 1.0)
    for name, text in variables(1, 2, port).items():
        monkeypatch.setenv(name, text)
    with pytest.raises(SystemExit, match="2"):
        main(["eval", *EVAL, str(tmp_path)])
    err = capsys.readouterr().err
    assert re.findall(r"minise: process 1: the processes do not meet at .*\n", err)


class Store:
    """Torch's store for one process: a counter and texts. Processes that are `alive` give another
    sign of life at each look; `then` are texts that come at a look."""

    def __init__(
        self, alive: Collection[int] = (), then: dict[int, tuple[str, str]] | None = None
    ) -> None:
        self.texts: dict[str, bytes] = {}
        self.counts: dict[str, int] = {}
        self.beats = {f"beat/{process}" for process in alive}
        self.looks = self.checks = 0
        self.then = then or {}

    def add(self, key: str, by: int) -> int:
        self.counts[key] = self.counts.get(key, 0) + by
        return self.counts[key]

    def set(self, key: str, text: str) -> None:
        self.texts[key] = text.encode()

    def check(self, keys: list[str]) -> bool:
        self.checks += 1
        assert self.checks < 20_000, "the wait has no end"
        return all(key in self.texts or key in self.beats for key in keys)

    def get(self, key: str) -> bytes:
        if key not in self.beats:
            return self.texts[key]
        self.looks += 1
        if self.looks in self.then:
            self.set(*self.then[self.looks])
        return str(self.looks).encode()


def test_a_process_has_given_a_sign_of_life_before_it_waits_for_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its thread could be late, and then torch, which waits for the others, has the store."""
    start = threading.Thread.start

    def late(thread: threading.Thread) -> None:
        if "beat" not in thread.name:
            start(thread)

    monkeypatch.setattr(threading.Thread, "start", late)
    store = Store()
    with parallel._beating(World(1, 2, store)):
        assert store.texts == {"beat/1": b"0"}
    assert set(store.texts) == {"beat/1", "ended/1"}


def test_each_number_is_claimed_once() -> None:
    store = Store()
    claims = [World(rank, 3, store).claim("x", 10) for rank in range(3)]
    taken = [next(claims[i]) for i in (0, 1, 1, 2, 0, 1)]
    assert taken == [0, 1, 2, 3, 4, 5]
    assert [list(claim) for claim in claims] == [[6, 7, 8, 9], [], []]
    assert list(World().claim("x", 3)) == [0, 1, 2]


def test_a_text_is_received_unless_a_process_failed() -> None:
    world = World(0, 2, Store())
    assert world.received("a") is None
    world.send("a", "here")
    assert world.received("a") == "here"
    assert world.receive("a", [1]) == "here"
    world.send("failed", "process 1: no memory")
    assert world.receive("a", [1]) == "here"
    with pytest.raises(InputError, match="process 1: no memory"):
        world.receive("b", [1])


class TestEveryWaitEnds:
    @pytest.fixture(autouse=True)
    def quick(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Each turn of a wait looks for signs of life, and takes no time."""
        monkeypatch.setattr(parallel, "PAUSE", parallel.SILENCE / parallel.LOOKS)
        monkeypatch.setattr(parallel, "time", SimpleNamespace(sleep=lambda seconds: None))

    @pytest.mark.parametrize("last", [None, "17"], ids=["never came", "stopped"])
    def test_of_a_process_without_a_sign_of_life(self, last: str | None) -> None:
        store = Store(alive=[1])
        if last:
            store.set("beat/2", last)
        with pytest.raises(InputError, match="process 2 has given no sign of life"):
            World(0, 3, store).receive("a", [1, 2])
        assert store.looks == parallel.LOOKS + 1

    def test_but_a_living_process_may_take_any_time(self) -> None:
        store = Store(alive=[1, 2], then={100 * parallel.LOOKS: ("a", "here")})
        assert World(0, 3, store).receive("a", [1, 2]) == "here"

    def test_and_a_process_may_end_if_another_one_can_still_send(self) -> None:
        store = Store(alive=[2])
        store.set("ended/1", "")
        with pytest.raises(InputError, match="process 1 has given no sign of life"):
            World(0, 3, store).receive("a", [1])
        store.then[10 * parallel.LOOKS] = ("failed", "no memory")
        with pytest.raises(InputError, match="no memory"):
            World(0, 3, store).receive("a", [1, 2])

    def test_of_a_store_that_does_not_answer(self, monkeypatch: pytest.MonkeyPatch) -> None:
        store, never = Store(), threading.Event()
        store.check = lambda keys: never.wait()  # type: ignore[assignment]
        monkeypatch.setattr(parallel, "SILENCE", 0.1)
        with pytest.raises(InputError, match=r"store .* is gone \(no answer for 0.1 s\)"):
            World(0, 2, store).receive("a", [1])
        never.set()

    def test_of_a_store_whose_connection_breaks(self) -> None:
        store = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
        client = TCPStore("localhost", store.port, is_master=False)
        world = World(0, 2, client)
        assert world.received("a") is None
        del store
        with pytest.raises(InputError, match="store that the processes share is gone"):
            world.receive("a", [1])
