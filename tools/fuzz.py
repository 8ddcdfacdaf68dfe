"""Give the commands thousands of bad inputs. Whatever the input, they may do one of three things:
answer, say that a check failed, or refuse in one line.

    python -m tools.fuzz                                    10,000 cases of all kinds
    python -m tools.fuzz --kind config --seed 17 --cases 1  one case again, with all details

A case damages real files of a tiny model, of questions or of a run, or a command line, and calls
`minise.commands.cli.main` in this process. It fails if an exception leaves main; if the exit
status is not 0, 1 or 2; if stderr holds anything but the one line of a refusal and notes on what
is left out or missing; if a line is longer than 400 characters; if a control character reaches the
terminal; if an answer or results.json holds NaN; if it takes too long; or if a file is
opened for writing outside the case's own folder.

Cases run in forked processes with limited memory, so that one that dies or hangs is a failure of
its own. Linux only.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import re
import resource
import shutil
import sys
import tempfile
import time
import traceback
import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from minise.commands import cli
from tests.support.bad_inputs import KINDS, Case, make_originals
from tests.support.confine import confined, terminal

SECONDS = 8.0  # of the processor's time, for one case; most take a tenth of a second
MEMORY = 3 * 2**30  # address space that a case may take beside what is there
LONGEST = 400
NOTES = re.compile(  # with any status
    r"minise: .*(\bleft out\b|the run goes on|nothing can be scored|if they are counted from 1"
    r"|written again from the samples)"
)


@dataclass(frozen=True)
class Failure:
    """A case that did what no input may make it do. `reason` is equal for equal defects."""

    kind: str
    seed: int
    reason: str
    detail: str = ""  # what it said, or the traceback


def run_case(kind: str, seed: int, originals: Path, show: bool = False) -> Failure | None:
    """Run one case in this process. `originals`: the folder of `make_originals`, which stays as it
    is."""
    with tempfile.TemporaryDirectory(dir=originals) as root:
        folder, out, err = Path(root, "case"), Path(root, "out"), Path(root, "err")
        folder.mkdir()
        case = Case(random.Random(f"{kind}/{seed}"), originals, folder)
        arguments = KINDS[kind](case)
        status: Any = None
        problem = ""
        began = time.process_time()
        with ExitStack() as stack:
            stack.enter_context(terminal(1, Path(case.stdout or out), case.encoding))
            stack.enter_context(terminal(2, err, "utf-8"))
            stack.enter_context(confined(folder, SECONDS))
            os.environ.update(case.environment)
            if case.chance(0.8):  # drawing takes most of an evaluation's time
                stack.enter_context(mock.patch("matplotlib.figure.Figure.savefig", _no_figure))
            try:
                status = cli.main(arguments)
            except SystemExit as ended:  # --help and --version
                status = ended.code
            except BaseException as error:  # a library written in Rust may raise one, too
                problem, detail = where(error), traceback.format_exc()
        errors = err.read_text(encoding="utf-8", errors="replace")
        printed = out.read_text(encoding="utf-8", errors="replace") if out.exists() else ""
        if not problem:
            detail = f"{errors[:2000]}\n{printed[:500]}"
            took = time.process_time() - began
            problem = f"over {SECONDS:.0f} seconds" if took > SECONDS else ""
            as_json = "--json" in arguments and "--help" not in arguments
            problem = problem or judge(status, printed, errors, as_json)
            is_evaluation = status == 0 and arguments[:1] == ["eval"]
            problem = problem or (_nan_in_results(folder) if is_evaluation else "")
        if show:
            print(f"minise {arguments!r:.3000}\nstatus {status}\n{printed}{errors}")
        # Folders that were made unreadable, or links to themselves, do not stop the clean-up.
        shutil.rmtree(folder, ignore_errors=True)
    return Failure(kind, seed, problem, detail) if problem else None


def _no_figure(*_: object, **options: Any) -> None:
    pass


def judge(status: Any, printed: str, errors: str, as_json: bool = False) -> str:
    """What is wrong with the output of a command; empty if nothing is."""
    lines = [line for line in errors.split("\n") if line]
    refusals = [line for line in lines if not NOTES.match(line)]
    if status not in (0, 1, 2):
        return f"exit status {status}"
    if any(unicodedata.category(c) in ("Cc", "Cs") and c != "\n" for c in errors + printed):
        return "a control character on the terminal"
    if odd := [line for line in refusals if not line.startswith("minise: ")]:
        return f"on stderr: {re.sub(r'0x[0-9a-f]+|[0-9]+|/[^ ]*', '_', odd[0])[:80]}"
    if len(refusals) != (status == 2) or (errors and not errors.endswith("\n")):
        return f"status {status} with {len(refusals)} lines on stderr"
    if any(len(line) > LONGEST for line in lines):
        return f"a line of over {LONGEST} characters"
    if status == 0 and as_json and printed and not _is_sound(printed):
        return "NaN, or no JSON, on stdout"
    return ""


def _is_sound(text: str) -> bool:
    def refuse(constant: str) -> None:
        raise ValueError(constant)

    try:
        json.loads(text, parse_constant=refuse)
    except ValueError:
        return False
    return True


def _nan_in_results(folder: Path) -> str:
    files = [path for path in folder.glob("**/results.json") if path.is_file()]
    sound = all(_is_sound(path.read_text(encoding="utf-8", errors="replace")) for path in files)
    return "" if sound else "NaN, or no JSON, in results.json"


def where(error: BaseException) -> str:
    """The exception's class and the innermost line of the package that it came through."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [f for f in frames if Path(cli.__file__).parents[1] in Path(f.filename).parents]
    at = f" in {Path(ours[-1].filename).name}:{ours[-1].lineno} ({ours[-1].name})" if ours else ""
    return f"{type(error).__name__}{at}"


def run_all(cases: Sequence[tuple[str, int]], originals: Path) -> Iterator[Failure | None]:
    """Run these cases in turn. A process runs 200 of them, or less if it dies or hangs."""
    fork = multiprocessing.get_context("fork")
    done = 0
    while done < len(cases):
        batch = cases[done : done + 200]
        answers, writer = fork.Pipe(duplex=False)
        child = fork.Process(target=_run_batch, args=(batch, originals, writer))
        child.start()
        writer.close()
        for case in batch:
            done += 1
            try:
                failure = answers.recv() if answers.poll(20 * SECONDS) else Failure(*case, "hangs")
            except EOFError:
                child.join()
                failure = Failure(*case, f"the process died ({child.exitcode})")
            yield failure
            if failure and not failure.detail:
                break
        child.kill()
        child.join()


def _run_batch(batch: Sequence[tuple[str, int]], originals: Path, answers: Connection) -> None:
    # How much is mapped already depends on what is imported, so the limit is relative to it.
    mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (mapped + MEMORY, mapped + MEMORY))
    for kind, seed in batch:
        answers.send(run_case(kind, seed, originals))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0, help="of the first case of each kind")
    parser.add_argument("--kind", choices=tuple(KINDS), help="default: each in turn")
    args = parser.parse_args()
    kinds = tuple(KINDS) if args.kind is None else (args.kind,)
    cases = [(kinds[i % len(kinds)], args.seed + i // len(kinds)) for i in range(args.cases)]
    torch.set_num_threads(1)  # a process that has threads cannot be forked safely
    failures: Counter[tuple[str, str]] = Counter()
    began = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="minise-fuzz-") as folder:
        originals = make_originals(Path(folder))
        if len(cases) == 1:
            run_case(*cases[0], originals, show=True)
        for number, failure in enumerate(run_all(cases, originals), 1):
            if number % 1000 == 0:
                print(f"{number} cases, {sum(failures.values())} failed", file=sys.stderr)
            if failure is None:
                continue
            failures[failure.kind, failure.reason] += 1
            if failures[failure.kind, failure.reason] == 1:
                again = f"--kind {failure.kind} --seed {failure.seed} --cases 1"
                print(f"{failure.kind}: {failure.reason}\n  python -m tools.fuzz {again}")
                for line in failure.detail.splitlines()[-6:]:
                    print(f"  | {line:.300}", flush=True)
    for (kind, reason), count in sorted(failures.items()):
        print(f"{count} times {kind}: {reason}")
    failed = sum(failures.values())
    seconds = time.perf_counter() - began
    print(f"{len(cases)} cases, {failed} failed, {len(failures)} defects, {seconds:.0f} seconds")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
