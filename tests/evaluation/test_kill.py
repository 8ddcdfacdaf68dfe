"""A run that is killed at any instant goes on and ends with the answers of one that was not."""

import os
import random
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

from minise.engines import LanguageModel
from minise.evaluation.run import Run, evaluate
from minise.files import PARTIAL
from tests.evaluation.conftest import lines

COMMAND = [
    *(sys.executable, "-m", "minise", "eval", "--task", "miniature", "--limit", "12"),
    *("--method", "standard,self-ensemble(trials=2),vector-scaling", "--json", "-o"),
]


def run_until(folder: Path, seconds: float | None) -> int:
    """Start the command; kill it so many seconds after its first answer."""
    process = subprocess.Popen([*COMMAND, str(folder)], stdout=subprocess.DEVNULL)
    first = folder / "samples-miniature-standard.jsonl"
    while seconds is not None and process.poll() is None and not first.exists():
        time.sleep(0.01)
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGKILL)
        return process.wait()


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_a_killed_run_goes_on(tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    assert run_until(tmp_path / "whole", None) == 0
    killed = 0
    for _ in range(3):
        killed += run_until(tmp_path / "killed", draw.uniform(0, 0.5)) == -signal.SIGKILL
    assert killed
    assert run_until(tmp_path / "killed", None) == 0
    for path in (tmp_path / "whole").glob("samples-*.jsonl"):
        assert lines(tmp_path / "killed" / path.name) == lines(path)


def fork(work: Callable[[], None]) -> int:
    """A process that does the work with what is loaded already."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of threads, which the child does not use
        child = os.fork()
    if child == 0:
        work()
        os._exit(0)
    return child


def test_a_file_half_written_by_a_killed_process_is_removed_by_the_next_run(
    lm: LanguageModel, make_run: Callable[..., Run], tmp_path: Path
) -> None:
    """Those of processes that live, and of other machines, stay."""

    def killed() -> None:
        os.replace = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
        evaluate(lm, make_run(), tmp_path, print)

    child = fork(killed)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
    (left,) = tmp_path.glob("*.partial")
    others = [left.with_name(f"{PARTIAL}{os.getppid()}.partial")]
    others.append(left.with_name(f".minise-elsewhere-{child}.partial"))
    for path in others:
        path.touch()
    evaluate(lm, make_run(), tmp_path, print)
    assert set(tmp_path.glob(".*.partial")) == set(others)
