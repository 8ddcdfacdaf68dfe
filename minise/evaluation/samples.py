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
from minise.files import json_text, read_bytes, write_file
from minise.loading.plugin import load_extra
from minise.methods.sample import Sample

# What wrong types and values in a file lead to, before anything can say what is wrong.
DAMAGE = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError)
_NESTED = (dict, list, tuple)
_ENDINGS = (".csv", ".json", ".jsonl", ".partial")


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
    for number, line in enumerate(_whole_lines(path).split(b"\n")[:-1], 1):
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


def peaks_so_far(path: Path) -> tuple[dict[tuple[str, str], int], str]:
    """The peaks of memory (bytes) in a results.json, by task and variant; and why it cannot be
    read, else empty. Such a file loses nothing: it is written again from the samples."""
    try:
        timing = json.loads(path.read_text(encoding="utf-8"))["timing"]
        peaks = {}
        for task, variants in timing.items():
            for variant, measured in variants.items():
                if measured["peak_bytes"] is not None:
                    peaks[task, variant] = int(measured["peak_bytes"])
        return peaks, ""
    except FileNotFoundError:
        return {}, ""
    except (OSError, *DAMAGE) as error:
        return {}, one_line(error)


def drop_torn_line(path: Path) -> None:
    """Cut a file after its last complete line, so that lines can be appended."""
    if path.exists() and len(lines := _whole_lines(path)) < path.stat().st_size:
        os.truncate(path, len(lines))


def _whole_lines(path: Path) -> bytes:
    """The content of a samples file without a torn last line; empty if there is no file. After a
    loss of power the last line may also hold zeros where it was not on the disk."""
    content = read_bytes(path) if path.exists() else b""
    content = content[: content.rfind(b"\n") + 1]
    last = content[:-1].rfind(b"\n") + 1
    return content[:last] if b"\0" in content[last:] else content


def append_lines(path: Path, lines: Iterable[str]) -> None:
    """Append complete lines in one write. They are on the disk when this returns.

    Raises InputError if they cannot be written, for example because the disk is full.
    """
    try:
        with path.open("ab") as file:
            file.write("".join(lines).encode(errors="backslashreplace"))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        reason = error.strerror or one_line(error)
        remedy = "make room, then go on with --resume"
        raise InputError(f"{path}: could not be written ({reason}); {remedy}") from None


def check_folder(folder: Path) -> None:
    """Raise InputError for a folder that could not be created or written. Creates nothing, so it
    can be called before a model is loaded."""
    try:
        problem = _folder_problem(folder)
    except (OSError, ValueError) as error:  # a name too long, or one that no system allows
        problem = one_line(error)
    if problem:
        name = shorten(str(folder), 150)
        reason = f"could not be written ({shorten(problem, 150)})"
        raise InputError(f"{name}: {reason}; choose another folder")


def _folder_problem(folder: Path) -> str:
    """Why a folder cannot be written; empty if it can. Raises OSError or ValueError, too."""
    nearest = next(path for path in (folder, *folder.absolute().parents) if _exists(path))
    if any(len(os.fsencode(part)) > 255 for part in folder.parts):
        return "File name too long"
    if not nearest.is_dir():
        return f"{nearest} is a file"
    if not os.access(nearest, os.W_OK | os.X_OK):
        return f"{nearest} may not be written"
    if nearest == folder:
        for path in folder.iterdir():
            if _blocks_a_file(path):
                return f"{path.name} in it is no file"
    return ""


def _exists(path: Path) -> bool:
    """Unlike Path.exists, raises OSError or ValueError for a name that cannot be."""
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def _blocks_a_file(path: Path) -> bool:
    """A folder or pipe where a run writes a file: opening it would fail, or wait for ever."""
    is_ours = path.name in (".lock", "report.md") or path.suffix in _ENDINGS
    return is_ours and path.exists() and not path.is_file()


@contextmanager
def open_folder(
    folder: Path, description: dict[str, Any], resume: bool, machine: dict[str, Any] | None = None
) -> Iterator[str]:
    """Lock a run's folder. Create it, or check that its run.json equals `description` (JSON: all
    that makes a run this run). The system releases the lock even if the process is killed.

    `machine` is kept beside it and may change: the context gives the first difference, or "".

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
    path = folder / "run.json"
    with lock:
        moved = ""
        if not (path.exists() or any(folder.glob("samples-*.jsonl"))):
            content = description | ({} if machine is None else {"machine": machine})
            write_file(path, json_text(content, indent=1) + "\n")
        else:
            try:
                stored = json.loads(path.read_text(encoding="utf-8"))
                stored_machine = stored.pop("machine", None)
                moved = first_difference(stored_machine, machine) if machine else ""
                difference = first_difference(stored, description)
            except (OSError, *DAMAGE) as error:
                problem = f"not readable ({one_line(error)})"
                raise InputError(f"{path}: {problem}; choose another folder") from None
            if difference:
                problem = f"{folder} holds another run ({difference})"
                raise InputError(f"{problem}; choose another folder")
            if not resume:
                problem = f"{folder} holds this run"
                raise InputError(f"{problem}; go on with --resume or use another folder")
        yield moved


def first_difference(stored: Any, current: Any, place: str = "") -> str:
    """Where two JSON values first differ, such as "tasks.words.hash" or "seeds.0", and how; empty
    if they are equal."""
    if stored and current and isinstance(stored, _NESTED) and isinstance(current, _NESTED):
        parts = [dict(x) if isinstance(x, dict) else dict(enumerate(x)) for x in (stored, current)]
        for key in {**parts[0], **parts[1]}:
            a, b = (values.get(key, "missing") for values in parts)
            if difference := first_difference(a, b, f"{place}.{key}"):
                return difference
        return ""
    texts = [json.dumps(value) for value in (stored, current)]
    if texts[0] == texts[1]:
        return ""
    a, b = (shorten(text, 70) for text in texts)
    return f"{shorten(place.lstrip('.'), 80)} is {a} there and {b} here"
