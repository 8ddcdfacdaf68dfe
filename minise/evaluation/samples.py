"""The samples of a run, and the folder that holds them.

A run can be killed at any time: then at most the last line of a samples file is torn.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from minise.errors import InputError, one_line, quote, shorten
from minise.loading.plugin import load_extra
from minise.methods.sample import Sample

# What wrong types and values in a file lead to, before anything can say what is wrong.
DAMAGE = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError)
_PARTS = (dict, list, tuple)


def samples_path(folder: Path, task: str, name: str) -> Path:
    """The samples file of one task under the variant `name`. Raises InputError for a name that no
    file can have: file systems allow 255 bytes, and files get an ending while they are written."""
    path = folder / f"samples-{task}-{name}.jsonl"
    if len(os.fsencode(path.name)) > 240:
        raise InputError(f"{quote(task)} is too long for the name of a file; shorten it")
    return path


def read_samples(path: Path) -> list[Sample]:
    """The samples of a file in its order; none if it does not exist. A torn last line is ignored.

    Raises InputError for any other line that is not a sample, and for one that occurs twice.
    """
    samples: dict[tuple[int, str], Sample] = {}
    *lines, _ = path.read_bytes().split(b"\n") if path.exists() else [b""]
    for number, line in enumerate(lines, 1):
        try:
            sample = Sample(**json.loads(line))
            if problem := sample.problem():
                raise ValueError(problem)
            if sample.key in samples:
                raise ValueError(f"question {quote(sample.id)} is there twice")
        except DAMAGE as error:
            remedy = "delete the line, then go on with --resume"
            problem = f"line {number}: not a sample ({one_line(error)}); {remedy}"
            raise InputError(f"{path}, {problem}") from None
        samples[sample.key] = sample
    return list(samples.values())


def drop_torn_line(path: Path) -> None:
    """Cut a file after its last complete line, so that lines can be appended."""
    if path.exists():
        os.truncate(path, path.read_bytes().rfind(b"\n") + 1)


def append_lines(path: Path, lines: Iterable[str]) -> None:
    """Append complete lines in one write. They are on the disk when this returns.

    Raises InputError if they cannot be written, for example because the disk is full.
    """
    _write(path, "ab", "".join(lines), path)


def replace_file(path: Path, text: str) -> None:
    """Write a file so that it always has all of its old content or all of the new one.

    Raises InputError if it cannot be written.
    """
    _write(path.with_name(path.name + ".partial"), "wb", text, path)


def _write(written: Path, mode: str, text: str, path: Path) -> None:
    try:
        with written.open(mode) as file:
            # Half a surrogate pair, from a file name that is not UTF-8, becomes JSON's escape.
            file.write(text.encode(errors="backslashreplace"))
            file.flush()
            os.fsync(file.fileno())
        if written != path:
            os.replace(written, path)
    except OSError as error:
        problem = f"could not be written ({error.strerror})"
        raise InputError(f"{path}: {problem}; make room, then go on with --resume") from None


def check_folder(folder: Path) -> None:
    """Raise InputError for a folder that could not be created or written. Creates nothing, so that
    it can be asked before a model is loaded."""
    try:
        there = next(path for path in (folder, *folder.absolute().parents) if _exists(path))
        if any(len(os.fsencode(part)) > 255 for part in folder.parts):
            problem = "File name too long"
        elif not there.is_dir():
            problem = f"{there} is a file"
        elif not os.access(there, os.W_OK | os.X_OK):
            problem = f"{there} may not be written"
        else:
            found = there.iterdir() if there == folder else ()
            problem = next((f"{path.name} in it is no file" for path in found if _odd(path)), "")
    except (OSError, ValueError) as error:  # a name too long, or one that no system allows
        problem = one_line(error)
    if problem:
        named = f"{shorten(str(folder), 150)}: could not be written ({shorten(problem, 150)})"
        raise InputError(f"{named}; choose another folder")


def _exists(path: Path) -> bool:
    """Unlike Path.exists, raises OSError or ValueError for a name that cannot be."""
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def _odd(path: Path) -> bool:
    """A folder or pipe in the place of a file: opening it would fail, or wait for ever."""
    kept = path.name in (".lock", "report.md") or path.suffix in (
        ".csv",
        ".json",
        ".jsonl",
        ".partial",
    )
    return kept and path.exists() and not path.is_file()


@contextmanager
def open_folder(
    folder: Path, description: dict[str, Any], resume: bool, machine: dict[str, Any] | None = None
) -> Iterator[str]:
    """Lock a run's folder. Create it, or check that its run.json equals `description` (JSON: all
    that makes a run this run). The system releases the lock even if the process is killed.

    `machine` is kept beside it and may change: the context is the first difference, or empty.

    Raises InputError for a folder that cannot be created, that another process is writing, that
    holds another run (its first difference is named), or that holds this run without `resume`.
    """
    filelock = load_extra("filelock")
    check_folder(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = filelock.FileLock(folder / ".lock").acquire(timeout=0)
    except filelock.Timeout:
        raise InputError(f"{folder}: another run is writing here; choose another folder") from None
    except (OSError, NotImplementedError) as error:  # some file systems have no locks
        raise InputError(f"{folder}: could not be locked ({one_line(error)})") from None
    mark = folder / "run.json"
    with lock:
        moved = ""
        if not (mark.exists() or any(folder.glob("samples-*.jsonl"))):
            kept = description | ({} if machine is None else {"machine": machine})
            replace_file(mark, json.dumps(kept, indent=1) + "\n")
        else:
            try:
                there = json.loads(mark.read_text(encoding="utf-8"))
                before = there.pop("machine", machine)
                moved = first_difference(before, machine) if machine else ""
                difference = first_difference(there, description)
            except (OSError, *DAMAGE) as error:
                problem = f"not readable ({one_line(error)})"
                raise InputError(f"{mark}: {problem}; choose another folder") from None
            if difference:
                problem = f"{folder} holds another run ({difference})"
                raise InputError(f"{problem}; choose another folder")
            if not resume:
                problem = f"{folder} holds this run"
                raise InputError(f"{problem}; go on with --resume or use another folder")
        yield moved


def first_difference(there: Any, here: Any, place: str = "") -> str:
    """Where two JSON values first differ, such as "tasks.words.hash" or "seeds.0", and how; empty
    if they are equal."""
    if there and here and isinstance(there, _PARTS) and isinstance(here, _PARTS):
        pair = [dict(x) if isinstance(x, dict) else dict(enumerate(x)) for x in (there, here)]
        for key in {**pair[0], **pair[1]}:
            a, b = (values.get(key, "missing") for values in pair)
            if found := first_difference(a, b, f"{place}.{key}"):
                return found
        return ""
    texts = [json.dumps(value) for value in (there, here)]
    if texts[0] == texts[1]:
        return ""
    a, b = (shorten(text, 70) for text in texts)
    return f"{shorten(place.lstrip('.'), 80)} is {a} there and {b} here"
