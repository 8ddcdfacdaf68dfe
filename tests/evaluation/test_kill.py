"""A run that is killed at any instant can be resumed, and ends like a run that was not killed."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tools.kill import CALLS, Death, Runs, kill, outcome

for module in ("scipy", "sklearn", "matplotlib", "filelock"):
    pytest.importorskip(module)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return Runs(tmp_path_factory.mktemp("runs"))


def test_a_run_killed_ten_times_ends_like_an_unbroken_run(runs: Runs) -> None:
    kills = list(kill(runs, 10))
    assert len(kills) == 10
    assert {"fsync (1)", "replace (1)"} <= {place for place, _ in kills}
    assert all(equal for _, equal in kills)


def test_a_run_dies_at_the_requested_call(runs: Runs, tmp_path: Path) -> None:
    """Once before the fifth call and, when it goes on, after the first, where a file is cut."""
    assert runs.run(tmp_path, Death(at=(5, False))) == -signal.SIGKILL
    assert runs.last_calls() == runs.calls[1, 0][:5]
    assert runs.run(tmp_path, Death(at=(1, True))) == -signal.SIGKILL
    assert len(runs.last_calls()) == 1
    assert set(runs.calls[1, 0]) | {"truncate"} == set(CALLS)


def test_one_of_two_processes_is_killed_and_the_other_ends_by_itself(
    runs: Runs, tmp_path: Path
) -> None:
    """Process 1 before its second claim, then process 0 after a write; then one process goes on."""
    second = Death(2, 1, (3, False), leaves=True)
    assert runs.run(tmp_path, second) == -signal.SIGKILL
    assert runs.last_calls(1) == ["set", "add", "add"]
    assert runs.run(tmp_path, Death(2, 0, (4, True))) == -signal.SIGKILL
    assert runs.run(tmp_path) == 0
    assert outcome(tmp_path) == runs.whole


def test_a_difference_of_one_bit_is_noticed(runs: Runs, tmp_path: Path) -> None:
    assert runs.run(tmp_path) == 0
    assert outcome(tmp_path) == runs.whole
    path = tmp_path / "samples-miniature-standard.jsonl"
    text = path.read_text()
    digit = text.index('"probabilities": [0.') + len('"probabilities": [0.') + 10
    path.write_text(text[:digit] + str((int(text[digit]) + 1) % 10) + text[digit + 1 :])
    assert outcome(tmp_path) != runs.whole
