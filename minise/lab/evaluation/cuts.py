"""When a run was under way, and where: cuts.jsonl has a line for each beginning and each end.

A run may be cut off and go on, on another machine too, so it has several of both. The program
writes them, so that nobody has to remember: what a person wrote by hand is no evidence. Nothing
else reads them but records of runs.
"""

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch

from minise.lab.evaluation.folder import Shard, path_in, suffix
from minise.lab.evaluation.lines import append_line, open_lines, read_lines
from minise.loading.machine import facts

GIT_SECONDS = 10  # that git may take
EVENT = '{"event": "'  # how a line begins


@contextmanager
def noted(folder: Path, shard: Shard) -> Iterator[None]:
    """Write what began now, and where, and later that it ended. A process that is killed writes no
    end: the next one says when the last answer came. Raises InputError for a file that cannot be
    written or holds something else."""
    path = path_in(folder, f"cuts{suffix(shard)}.jsonl")
    before = read_cuts(path)
    with open_lines(path, EVENT) as file:
        if before and before[-1]["event"] == "began":
            last = last_answer(folder, shard)
            append_line(file, {"event": "killed", "last_answer": last})
        append_line(file, {"event": "began", "at": written(time_now()), **where()})
        began = time.process_time()
        how = "interrupted"
        try:
            yield
            how = "ended"
        finally:
            seconds = round(time.process_time() - began, 1)
            end = {"event": how, "at": written(time_now()), "cpu_seconds": seconds}
            with suppress(OSError):  # a full disk: what stopped the run is what the user must see
                append_line(file, end)


def read_cuts(path: Path) -> list[dict[str, Any]]:
    """The lines of a file of cuts, none if there is no file. Raises InputError."""

    def checked(value: Any) -> dict[str, Any]:
        if not isinstance(value, dict) or "event" not in value:
            raise ValueError
        return value

    return read_lines(path, checked)


def where() -> dict[str, Any]:
    """The commit of this code, None where it is in no checkout, and the machine."""
    of_machine = facts()
    return {
        "commit": commit(),
        "cpu": of_machine["cpu"],
        "instructions": of_machine["instructions"],
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "torch": of_machine["torch"],
        "threads": torch.get_num_threads(),
    }


def commit() -> str | None:
    """The commit that is checked out where this code lies, with "-dirty" if a file was changed.
    None where git does not know this file: the checkout around it may be the user's own."""
    here = Path(__file__)
    try:
        git("ls-files", "--error-unmatch", here.name, folder=here.parent)
        return git(
            "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*", folder=here.parent
        )
    except (OSError, subprocess.SubprocessError):
        return None


def git(*words: str, folder: Path) -> str:
    """What git says in this folder."""
    done = subprocess.run(
        ["git", "-C", str(folder), *words],
        capture_output=True,
        text=True,
        check=True,
        timeout=GIT_SECONDS,
    )
    return done.stdout.strip()


def last_answer(folder: Path, shard: Shard) -> str | None:
    """When an answer of this shard was last written; None if there is no file of answers."""
    times = []
    for path in folder.glob(f"samples-*{suffix(shard)}.jsonl"):
        times.append(path.stat().st_mtime)
    if not times:
        return None
    return written(datetime.fromtimestamp(max(times), timezone.utc))


def time_now() -> datetime:
    return datetime.now(timezone.utc)


def written(moment: datetime) -> str:
    return moment.isoformat(timespec="seconds")
