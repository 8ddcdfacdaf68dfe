"""The files of a run's folder, and who may write there."""

import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import filelock
import pandas as pd

from minise.errors import InputError, quote
from minise.lab.evaluation.facts import read_facts
from minise.lab.files import make_folder, read_file, unwritable, write_file

Shard = tuple[int, int]  # the i-th of n, from 0
WHOLE: Shard = (0, 1)
LEFT_OUT = "left out: "  # begins the line that says why a method does not suit a task


def suffix(shard: Shard) -> str:
    return "" if shard == WHOLE else f".shard-{shard[0]}-of-{shard[1]}"


def samples_path(folder: Path, task: str, method: str, shard: Shard = WHOLE) -> Path:
    """Where the answers of a method are."""
    return path_in(folder, f"samples-{task}-{method}{suffix(shard)}.jsonl")


def texts_path(folder: Path, task: str, method: str, shard: Shard = WHOLE) -> Path:
    """Where the texts are that a model writes before it answers."""
    return path_in(folder, f"texts-{task}-{method}{suffix(shard)}.jsonl")


def path_in(folder: Path, name: str) -> Path:
    """A file of the folder, also where a method is named by a path."""
    return folder / re.sub(r"[/\\]", "_", name)


def reason_path(samples: Path) -> Path:
    """Where it is said why a method is left out, beside where its answers would be."""
    return samples.with_suffix(".left-out")


def read_reason(path: Path) -> str | None:
    """Why a method is left out, None where it is not. Raises InputError for a file that does not
    say it."""
    content = read_file(path)
    if content is None:
        return None
    reason = " ".join(content.decode(errors="replace").split())
    if not reason.startswith(LEFT_OUT):
        remedy = "delete it, then run the same minise eval again"
        raise InputError(f"{path}: does not say why the method is left out; {remedy}")
    return reason


def run_files(folder: Path) -> list[Path]:
    if not os.path.isdir(folder):
        return []
    return sorted(folder.glob("run.shard-*-of-*.json")) + sorted(folder.glob("run.json"))


@contextmanager
def opened(folder: Path, what: dict[str, Any], shard: Shard) -> Iterator[None]:
    """A run's folder, created or checked, and locked against a second process of this shard. The
    system releases the lock even if the process is killed. what: the run, as `describe` has it."""
    make_folder(folder)
    try:
        lock = filelock.FileLock(folder / f".lock{suffix(shard)}").acquire(timeout=0)
    except filelock.Timeout:
        raise InputError(f"{folder}: another process is writing here; choose another") from None
    except OSError as error:
        raise unwritable(folder, error) from None
    with lock:
        for path in run_files(folder):
            there = read_facts(path).whole
            answered = take_over(folder, there, what, only_without_answers=True)
            found = difference_of(there, what)
            if found:
                remedy = "choose another folder"
                take_over(folder, there, what, only_without_answers=False)
                if answered and not difference_of(there, what):  # but for some methods it is this
                    remedy = f"delete {answered[0].name} to ask it again (the other answers stay)"
                raise InputError(f"{folder} holds another run ({found}); {remedy}")
        write_file(folder / f"run{suffix(shard)}.json", json.dumps(what, indent=1) + "\n")
        yield


def take_over(
    folder: Path, there: dict[str, Any], here: dict[str, Any], only_without_answers: bool
) -> list[Path]:
    """Let the run that is `there` have the methods as they are `here`, if they have no answers in
    the folder: a new method, or one whose code changed, leaves those of the others as they are.
    The files of methods that differ and have answers."""
    answered = []
    for task, facts in here["tasks"].items():
        methods = there["tasks"].get(task, {}).get("methods", {})
        for name, method in facts["methods"].items():
            files = [] if method["fitted"] else files_of(folder, task, name)
            if method != methods.get(name) and files:
                answered += files
            if method != methods.get(name) and not (files and only_without_answers):
                methods[name] = method
    return answered


def files_of(folder: Path, task: str, method: str) -> list[Path]:
    """Where a method has answers, or texts that come before them; of all shards."""
    found = []
    for whole in (samples_path(folder, task, method), texts_path(folder, task, method)):
        stem = whole.name.removesuffix(".jsonl")
        for path in sorted(folder.iterdir()):
            is_its = re.fullmatch(rf"{re.escape(stem)}(\.shard-\d+-of-\d+)?\.jsonl", path.name)
            if is_its and read_file(path):
                found.append(path)
    return found


def difference_of(there: Any, here: Any) -> str:
    """Where two runs first differ, such as "tasks.words.hash", and how; empty if they are equal."""
    of_there = pd.json_normalize(there).iloc[0].to_dict()
    of_here = pd.json_normalize(here).iloc[0].to_dict()
    for key in {**of_there, **of_here}:
        a = quote(of_there.get(key, "missing"), 70)
        b = quote(of_here.get(key, "missing"), 70)
        if a != b:
            return f"{key} is {a} there and {b} here"
    return ""
