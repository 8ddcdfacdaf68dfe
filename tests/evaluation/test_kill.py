"""A run that is killed at any instant goes on and ends with the answers of one that was not."""

import os
import random
import signal
import time
import warnings
from collections.abc import Callable
from pathlib import Path

from minise.engines import LanguageModel
from minise.evaluation.run import Run, evaluate
from minise.files import PARTIAL
from tests.evaluation.conftest import lines


def test_a_process_killed_at_three_instants_goes_on(
    lm: LanguageModel, make_run: Callable[..., Run], finished: Path, tmp_path: Path
) -> None:
    draw, run = random.Random(0), make_run("standard", "self-ensemble")
    for _ in range(3):
        child = fork(lambda: evaluate(lm, run, tmp_path, print))
        time.sleep(draw.uniform(0, 0.25))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    evaluate(lm, run, tmp_path, print)
    for path in finished.glob("samples-*.jsonl"):
        assert lines(tmp_path / path.name) == lines(path)


def fork(work: Callable[[], None]) -> int:
    """A process that does the work with what is loaded already."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of threads, which the child does not use
        child = os.fork()
    if child == 0:
        try:
            work()
        finally:  # whatever happens, this process is no test
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
