"""Let each call on a file fail in turn, and see that nothing is lost.

    python -m tools.faults                     every call of every command, with every error
    python -m tools.faults --command report --every 7

A command is run many times in this process. In the n-th run its n-th call fails: an open, write,
flush, close, read, rename, fsync, mkdir, truncate or listing of minise's own files. The errors are
a full disk (once, and for all later calls that write), a broken disk, too many open files and a
missing permission. The command may succeed, with all that it has to give, where it can do without
the call. Else it ends with exit status 2 and one line that names the file or its folder. Then every
file has its old content or a new one, every answer that was written is there, and the same command
(`eval` has --resume) ends like one that met no fault.
"""

from __future__ import annotations

import argparse
import builtins
import contextlib
import errno
import io
import json
import os
import shutil
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import torch

import minise
from minise.commands import cli
from minise.evaluation import samples
from minise.exact import machine
from minise.loading import identity
from tests.support.calls import Calls
from tests.support.tiny import FAMILIES, write_checkpoint
from tools.fuzz import NOTES
from tools.kill import outcome

FOR_GOOD = -errno.ENOSPC  # the disk stays full
ERRORS = (errno.ENOSPC, errno.EIO, errno.EMFILE, errno.EACCES, FOR_GOOD)
GROWS = ("write", "flush", "fsync", "mkdir")
METHODS = "standard,self-ensemble,vector-scaling(folds=2)"  # the last is fitted on the first


class Fault(Calls):
    """Lets the call number `at` fail, counted from 1; with 0 none. A negative error stays: calls
    that write fail from there on."""

    def __init__(self, *roots: Path, at: int = 0, error: int = errno.ENOSPC) -> None:
        super().__init__(*roots)
        self.at, self.error, self.stays = at, abs(error), error < 0
        self.seen: list[tuple[str, str]] = []  # the calls with their paths
        self.failed: tuple[str, str] | None = None
        self.written: dict[str, list[bytes]] = defaultdict(list)  # what was to take a file's place
        self._open = builtins.open

    def call(self, name: str, paths: list[str], real: Callable[..., Any], detail: Any) -> Any:
        self.seen.append((name, paths[-1]))
        if name == "replace":
            with self._open(paths[0], "rb") as file:
                self.written[os.path.basename(paths[1])].append(file.read())
        grows = name in GROWS or (name == "open" and str(detail)[:1] in "wax")
        fails = len(self.seen) >= self.at > 0 and grows if self.stays else len(self.seen) == self.at
        if not fails:
            return real()
        if self.failed is None or self.failed[1].startswith("/proc/"):  # the run does without these
            self.failed = name, paths[-1]
        if name == "write":  # a part may have been taken
            real(detail[: len(detail) // 2])
        # The system names the file of a call that has a path, and no other.
        named = [] if name in (*GROWS[:3], "close", "read", "readlines") else paths
        raise OSError(self.error, os.strerror(self.error), *named[:1])


@dataclass(frozen=True)
class Case:
    """A command whose n-th call fails."""

    command: str
    number: int
    error: int
    call: tuple[str, str] | None  # its name and path; None if the command ended before
    problem: str  # what went wrong; empty if nothing did

    def __str__(self) -> str:
        kind = errno.errorcode[abs(self.error)] + (" for good" if self.error < 0 else "")
        called = " ".join(self.call or ("not reached",))
        return f"{self.command}, call {self.number} ({called}), {kind}: {self.problem}"


class Commands:
    """Small commands, each with the files that it finds: an evaluation that begins, one that goes
    on after a torn line, one that has ended, and a report and a page where older ones lie."""

    def __init__(self, folder: Path, model: Path | None = None) -> None:
        self.folder, self.output = folder, folder / "output"
        tiny = {**FAMILIES["llama"], "num_hidden_layers": 1}
        self.model = model or write_checkpoint(folder / "model", tiny)
        rows = [{"question": f"Number {n}?", "choices": list("abc"), "answer": n} for n in range(3)]
        questions, one = folder / "questions.jsonl", folder / "one.json"
        questions.write_text("".join(json.dumps(row) + "\n" for row in rows))
        one.write_text(json.dumps(rows[0]))
        small = ["--model", self.model, "--group-size", 2, "--trials", 2]
        run = ["eval", *small, "--task", questions, "--method", METHODS]
        run += ["--output-path", self.output, "--resume"]
        page = ["--output", self.output / "page.html", "--figure", self.output / "mask.svg"]
        self.arguments = {
            **dict.fromkeys(("eval", "eval that goes on", "eval that has ended"), run),
            "report": ["report", self.output],
            "explain": ["explain", *small, "--file", one, *page],
        }
        self.starts = {name: folder / f"start of {name}" for name in self.arguments}
        self._make_starts()
        self.ends: dict[str, dict[str, Any]] = {}
        self.calls: dict[str, int] = {}
        for name in self.arguments:
            fault = Fault(*self.roots)
            status, errors, _ = self.run(name, fault)
            assert (status, errors) == (0, ""), (name, status, errors)
            self.ends[name], self.calls[name] = self.end(name), len(fault.seen)

    def _make_starts(self) -> None:
        self.starts["eval"].mkdir()
        for _ in range(2):  # the first imports what is imported late
            assert self.run("eval")[0] == 0
        for name in self.starts.keys() - {"eval", "explain"}:
            shutil.copytree(self.output, self.starts[name])
        torn = self.starts["eval that goes on"]
        for path in (torn / "results.json", *torn.glob("predictions-*")):
            path.unlink()
        path = torn / "samples-questions-self-ensemble.jsonl"
        path.write_bytes(path.read_bytes()[:-9])
        self.starts["explain"].mkdir()
        for command, names in {
            "report": ["report.md", "accuracy.png"],
            "explain": ["page.html", "mask.svg"],
        }.items():
            for name in names:
                (self.starts[command] / name).write_text("old")

    @property
    def roots(self) -> list[Path]:
        """Where calls fail: minise's own files, those that it is given, and the system's facts."""
        return [self.folder, self.model, Path(minise.__file__).parent, Path("/proc")]

    def run(
        self, name: str, fault: Fault | None = None, fresh: bool = True
    ) -> tuple[Any, str, int]:
        """Run a command, where nothing else is `fresh`. Its exit status, what it says on stderr,
        and how many answers it has appended."""
        if fresh:
            shutil.rmtree(self.output, ignore_errors=True)
            if name != "eval":
                shutil.copytree(self.starts[name], self.output)
        for cached in (identity.code_identity, machine._read):
            cached.cache_clear()
        errors, appended = io.StringIO(), 0
        append = vars(samples)["append_text"]

        def counted(*arguments: Any) -> None:
            nonlocal appended
            append(*arguments)
            appended += 1

        with contextlib.ExitStack() as stack:
            stack.enter_context(contextlib.redirect_stderr(errors))
            stack.enter_context(contextlib.redirect_stdout(io.StringIO()))
            # Few of the code's files, and few resamples: else most of the time goes there.
            for target, value in {
                "minise.loading.identity.ANSWERING": ("exact",),
                "minise.evaluation.metrics.RESAMPLES": 20,
                "minise.evaluation.samples.append_text": counted,
                "minise.report.figures.make_figures": _figures,
            }.items():
                stack.enter_context(mock.patch(target, value))
            if fault is not None:
                stack.enter_context(fault.watching())
            try:
                status: Any = cli.main([str(argument) for argument in self.arguments[name]])
            except BaseException as error:
                status = f"{type(error).__name__} ({error})"
        return status, errors.getvalue(), appended

    def end(self, name: str) -> dict[str, Any]:
        """All that a command leaves, without the clock."""
        files = {path.name: path.read_bytes() for path in self.output.iterdir()}
        if not name.startswith("eval"):
            return {**files, ".lock": b""}
        named = ("run.json", "accuracy.png", "predictions-questions.csv")
        return outcome(self.output) | {name: files[name] for name in named}

    def check(self, name: str, number: int, error: int) -> Case:
        """Run a command whose n-th call fails, and judge all that follows."""
        fault = Fault(*self.roots, at=number, error=error)
        status, errors, appended = self.run(name, fault)
        said = [line for line in errors.splitlines() if not NOTES.match(line)]
        if status not in (0, 2):
            problem = f"exit status {status}"
        elif len(said) != (status == 2) or any(not line.startswith("minise: ") for line in said):
            problem = f"status {status} with {len(said)} lines: {errors}"
        elif status == 0 and str(fault.failed).find("/proc/") > 0:
            problem = ""  # the machine is described in fewer words
        elif status == 0:
            problem = "" if self.end(name) == self.ends[name] else "status 0 with another end"
        else:
            problem = self._after_refusal(name, fault, said[0], appended)
        return Case(name, number, error, fault.failed, problem)

    def _after_refusal(self, name: str, fault: Fault, line: str, appended: int) -> str:
        path = Path(fault.failed[1] if fault.failed else "?")
        # A file that is written has another name meanwhile.
        of_folder = str(path.parent) in line and self.folder in path.parents
        if str(path) not in line and not of_folder:
            return f"the file is not named: {line}"
        if self.output.exists() and (problem := self._lost(name, fault, appended)):
            return problem
        status, errors, _ = self.run(name, fresh=False)
        if status != 0:
            return f"it does not go on: {errors}"
        return "" if self.end(name) == self.ends[name] else "it goes on to another end"

    def _lost(self, name: str, fault: Fault, appended: int) -> str:
        """Which file is neither old nor new, or lacks an answer; empty if all is there."""
        missing = appended
        for path in self.output.iterdir():
            content, start = path.read_bytes(), self.starts[name] / path.name
            old = start.read_bytes() if start.exists() else b""
            if content in (old, *fault.written[path.name]):
                continue
            kept = old[: old.rfind(b"\n") + 1]
            if path.suffix != ".jsonl" or not content.startswith(kept):
                return f"{path.name} is neither old nor new"
            missing -= content.count(b"\n") - kept.count(b"\n")
        return f"{missing} answers are lost" if missing > 0 else ""


class _Figure:
    """A figure that takes no time to draw."""

    def savefig(self, file: Any, **options: Any) -> None:
        file.write(b"a picture")


def _figures(runs: Any) -> dict[str, Any]:
    return {"accuracy": _Figure()}


def check_all(commands: Commands, names: Sequence[str], every: int = 1) -> Iterator[Case]:
    """Each `every`-th case of these commands."""
    number = 0
    for name in names:
        for call in range(1, commands.calls[name] + 1):
            for error in ERRORS:
                number += 1
                if number % every == 0:
                    yield commands.check(name, call, error)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--command", action="append", help="such as report; else all")
    parser.add_argument("--every", type=int, default=1, help="only every n-th case")
    args = parser.parse_args()
    torch.set_num_threads(1)
    counts, problems = Counter[str](), 0
    with (
        tempfile.TemporaryDirectory(prefix="minise-faults-") as folder,
        mock.patch.dict(os.environ, XDG_CACHE_HOME=f"{folder}/cache"),
    ):
        commands = Commands(Path(folder).resolve())
        for case in check_all(commands, args.command or list(commands.calls), args.every):
            counts[case.command] += 1
            if case.problem:
                problems += 1
                print(case, flush=True)
    each = ", ".join(f"{name} {count}" for name, count in counts.items())
    print(f"{counts.total():,} cases ({each}): {problems} with a problem")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
