"""The files of a run's folder, and who may write there."""

import json
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import filelock
import pandas as pd

from minise.errors import InputError, quote
from minise.lab.evaluation.facts import RunFacts, read_facts
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
def opened(folder: Path, facts: RunFacts, shard: Shard) -> Iterator[None]:
    """A run's folder, created or checked, and locked against a second process of this shard. The
    system releases the lock even if the process is killed."""
    make_folder(folder)
    try:
        lock = filelock.FileLock(folder / f".lock{suffix(shard)}").acquire(timeout=0)
    except filelock.Timeout:
        raise InputError(f"{folder}: another process is writing here; choose another") from None
    except OSError as error:
        raise unwritable(folder, error) from None
    with lock:
        for path in run_files(folder):
            check_is_same(folder, read_facts(path), facts)
        write_facts(folder / f"run{suffix(shard)}.json", facts)
        yield


def write_facts(path: Path, facts: RunFacts) -> None:
    write_file(path, json.dumps(facts.as_json(), indent=1) + "\n")


def check_is_same(folder: Path, there: RunFacts, here: RunFacts) -> None:
    """Refuse to go on with a run that is another one. A new method, or one whose code changed, is
    no other run while it has no answers in the folder: it leaves those of the others as they
    are."""
    changed = changed_methods(there, here)
    unanswered = []
    answers = []
    for task, name in changed:
        is_fitted = here.tasks[task].methods[name].fitted  # its answers are made from others
        found = [] if is_fitted else files_of(folder, task, name)
        answers += found
        if not found:
            unanswered.append((task, name))
    differs = difference_of(there, here, unanswered)
    if not differs:
        return
    remedy = "choose another folder"
    if answers and not difference_of(there, here, changed):
        remedy = f"delete {answers[0].name} to ask it again (the other answers stay)"
    raise InputError(f"{folder} holds another run ({differs}); {remedy}")


def changed_methods(there: RunFacts, here: RunFacts) -> list[tuple[str, str]]:
    """The methods that are new here, or another than there: (task, method) of each."""
    changed = []
    for task, facts in here.tasks.items():
        if task in there.tasks:
            known = there.tasks[task].methods
            for name, method in facts.methods.items():
                if known.get(name) != method:
                    changed.append((task, name))
    return changed


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


def difference_of(there: RunFacts, here: RunFacts, but_for: Sequence[tuple[str, str]] = ()) -> str:
    """Where two runs first differ, such as "tasks.words.hash", and how; empty if they are equal.
    but_for: methods of tasks that may differ. A version of minise is noted, and not compared: a
    new one goes on with a run."""
    of_there = there.as_json()
    of_here = here.as_json()
    for task, name in but_for:
        of_there["tasks"][task]["methods"][name] = of_here["tasks"][task]["methods"][name]
    flat_there = pd.json_normalize(of_there).iloc[0].to_dict()
    flat_here = pd.json_normalize(of_here).iloc[0].to_dict()
    for key in {**flat_there, **flat_here}:
        a = quote(flat_there.get(key, "missing"), 70)
        b = quote(flat_here.get(key, "missing"), 70)
        if a != b and key != "versions.minise":
            return f"{key} is {a} there and {b} here"
    return ""
