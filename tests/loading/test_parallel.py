"""Several processes write the same files as one, even if one of them dies; a failure is one
line."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from minise import load
from minise.commands.cli import main
from minise.data.tasks import load_tasks
from minise.errors import InputError
from minise.evaluation.run import Run, evaluate
from minise.loading.parallel import World
from minise.methods.registry import Variant
from tests.support.commands import assert_one_line, run
from tests.support.processes import Team
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
    assert team.output("out").count("written: ") == 1
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
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "x")
    monkeypatch.setenv("RANK", "0")
    assert_one_line(*run(capsys, "ask"), ["torchrun is for minise eval", "without it"])
    monkeypatch.setenv("RANK", "1")  # the first process prints it
    assert run(capsys, "ask") == (0, "", "")


class Store:
    """Torch's store for one process: a counter and texts."""

    def __init__(self) -> None:
        self.texts: dict[str, bytes] = {}
        self.counts: dict[str, int] = {}

    def add(self, key: str, by: int) -> int:
        self.counts[key] = self.counts.get(key, 0) + by
        return self.counts[key]

    def set(self, key: str, text: str) -> None:
        self.texts[key] = text.encode()

    def check(self, keys: list[str]) -> bool:
        return all(key in self.texts for key in keys)

    def get(self, key: str) -> bytes:
        return self.texts[key]


def test_each_number_is_claimed_once() -> None:
    store = Store()
    claims = [World(rank, 3, store).claim("x", 10) for rank in range(3)]
    taken = [next(claims[i]) for i in (0, 1, 1, 2, 0, 1)]
    assert taken == [0, 1, 2, 3, 4, 5]
    assert [list(claim) for claim in claims] == [[6, 7, 8, 9], [], []]
    assert list(World().claim("x", 3)) == [0, 1, 2]


def test_receive_waits_for_a_text_unless_wait_is_false() -> None:
    world = World(0, 2, Store())
    assert world.receive("a", wait=False) is None
    world.send("a", "here")
    assert world.receive("a") == "here"
    world.send("failed", "process 1: no memory")
    assert world.receive("a") == "here"
    with pytest.raises(InputError, match="process 1: no memory"):
        world.receive("b")
