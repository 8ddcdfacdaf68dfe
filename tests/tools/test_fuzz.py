"""For any input: an answer, a failed check, or one line. The fuzzer notices everything else."""

from __future__ import annotations

import signal
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from minise.commands import cli
from tests.support.bad_inputs import KINDS, make_originals
from tools import fuzz
from tools.fuzz import Failure, run_case

for module in ("scipy", "sklearn", "matplotlib", "filelock", "pyarrow"):
    pytest.importorskip(module)


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_originals(tmp_path_factory.mktemp("originals"))


@pytest.mark.parametrize("kind", KINDS)
def test_no_bad_input_causes_a_failure(kind: str, originals: Path) -> None:
    evaluate = ("data", "run", "arguments", "output", "settings", "own", "labels")
    count = 15 if kind in (*evaluate, "packed") else 40  # these take longer
    failures = [run_case(kind, seed, originals) for seed in range(count)]
    assert [failure for failure in failures if failure] == []


def test_a_case_is_determined_by_its_seed(originals: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[list[str]] = []
    monkeypatch.setattr(cli, "main", lambda arguments: commands.append(arguments) or 0)
    for seed in (1, 2, 1):
        run_case("arguments", seed, originals)
    assert commands[0] == commands[2] != commands[1]


def raises(error: BaseException) -> Callable[[list[str]], int]:
    def main(_: list[str]) -> int:
        raise error

    return main


def says(status: int, out: str = "", err: str = "") -> Callable[[list[str]], int]:
    def main(_: list[str]) -> int:
        sys.stdout.write(out)
        sys.stderr.write(err)
        return status

    return main


def hang(_: list[str]) -> int:
    while True:
        pass


def warn(_: list[str]) -> int:
    warnings.warn("a glyph is missing", UserWarning, stacklevel=1)
    return 0


class Panic(BaseException):
    """As a library written in Rust raises it."""


PLANTED: dict[str, tuple[Callable[[list[str]], int], str]] = {
    "an exception": (raises(KeyError("x")), "KeyError"),
    "a panic": (raises(Panic()), "Panic"),
    "no memory": (raises(MemoryError()), "MemoryError"),
    "a status": (says(3), "exit status 3"),
    "a refusal of two lines": (says(2, err="minise: a\nb\n"), "on stderr: b"),
    "a refusal that says nothing": (says(2), "status 2 with 0 lines"),
    "an answer with a refusal": (says(0, "{}", "minise: no\n"), "status 0 with 1 lines"),
    "a long line": (says(2, err=f"minise: {'x' * 400}\n"), "over 400 characters"),
    "an escape sequence": (says(2, err="minise: \x1b[31m\n"), "a control character"),
    "NaN": (says(0, '{"score": NaN}'), "NaN"),
    "a hang": (hang, "Hang"),
    "a warning": (warn, "on stderr"),
    "a file elsewhere": (lambda _: len(Path("../x").write_text("")), "WroteOutside"),
    "a folder elsewhere": (lambda _: Path("../x").mkdir() or 0, "WroteOutside"),
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_defect_is_noticed(
    name: str, originals: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    main, reason = PLANTED[name]
    monkeypatch.setattr(fuzz, "SECONDS", 0.2)
    monkeypatch.setattr(cli, "main", main)
    monkeypatch.setattr(fuzz, "KINDS", {"x": lambda case: ["ask", "--json"]})
    failure = run_case("x", 0, originals)
    assert failure is not None
    assert reason in failure.reason


def test_a_reader_that_fails_is_noticed(originals: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def read_config(path: Path, source: str) -> Any:
        raise KeyError(path)

    monkeypatch.setattr("minise.loading.checkpoint.read_config", read_config)
    failure = run_case("weights", 0, originals)
    assert failure is not None
    assert failure.reason.startswith("KeyError in checkpoint.py")


def test_a_process_that_dies_is_one_failure(
    originals: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def main(arguments: list[str]) -> int:
        if "die" in arguments:
            signal.raise_signal(signal.SIGKILL)
        return 0

    monkeypatch.setattr(cli, "main", main)
    kinds = {"well": lambda case: ["x"], "ill": lambda case: ["die"]}
    monkeypatch.setattr(fuzz, "KINDS", kinds)
    failures = list(fuzz.run_all([("well", 0), ("ill", 1), ("well", 2), ("ill", 3)], originals))
    assert [failure for failure in failures if failure] == [
        Failure("ill", seed, "the process died (-9)") for seed in (1, 3)
    ]
    assert len(failures) == 4


def test_a_case_restores_folder_streams_and_settings(originals: Path) -> None:
    def state() -> list[Any]:
        alarms = (signal.getsignal(signal.SIGPROF), signal.getitimer(signal.ITIMER_PROF)[0])
        return [Path.cwd(), sys.stdout, sys.stderr, sys.dont_write_bytecode, *alarms]

    before = state()
    run_case("output", 0, originals)
    assert state() == before
