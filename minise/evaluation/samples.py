"""The samples of a run, and the folder that holds them.

A run can be killed at any time: then at most the last line of a samples file is torn.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from minise.errors import InputError
from minise.plugin import load_extra


@dataclass(frozen=True)
class Sample:
    """One question under one method and seed."""

    id: str
    seed: int
    question_hash: str  # of its text and choices
    answer: int  # the index of the right choice
    prediction: int  # the index of a choice
    probabilities: list[float]  # one for each choice
    scores: list[float]  # one for each choice
    tokens: int  # what the method's engine runs for this question alone
    seconds: float | None = None  # None for a method that asks no model
    logits: list[float] | None = None  # of the labels, if one prompt lists all choices
    groups: list[dict[str, Any]] | None = None  # each prompt's probabilities, if the run keeps them
    notes: dict[str, Any] | None = None  # whatever else the method keeps (JSON)

    @property
    def key(self) -> tuple[int, str]:
        """Seed and question id, which are unique in a file."""
        return self.seed, self.id

    def line(self) -> str:
        """The sample as a line of its file. JSON keeps every bit of a float; None is left out."""
        fields = {name: value for name, value in vars(self).items() if value is not None}
        return json.dumps(fields, ensure_ascii=False) + "\n"


def samples_path(folder: Path, task: str, name: str) -> Path:
    """The samples file of one task under the variant `name`."""
    return folder / f"samples-{task}-{name}.jsonl"


def read_samples(path: Path) -> list[Sample]:
    """The samples of a file in its order; none if it does not exist. A torn last line is ignored.

    Raises InputError for any other line that is not a sample, and for one that occurs twice.
    """
    samples: dict[tuple[int, str], Sample] = {}
    *lines, _ = path.read_bytes().split(b"\n") if path.exists() else [b""]
    for number, line in enumerate(lines, 1):
        try:
            sample = Sample(**json.loads(line))
        except (ValueError, TypeError) as error:
            raise InputError(f"{path}, line {number}: not a sample ({error}); delete it") from None
        if sample.key in samples:
            raise InputError(f"{path}, line {number}: question {sample.id} is there twice")
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
            file.write(text.encode())
            file.flush()
            os.fsync(file.fileno())
        if written != path:
            os.replace(written, path)
    except OSError as error:
        problem = f"could not be written ({error.strerror})"
        raise InputError(f"{path}: {problem}; make room, then go on with --resume") from None


@contextmanager
def open_folder(folder: Path, description: dict[str, Any], resume: bool) -> Iterator[None]:
    """Lock a run's folder. Create it, or check that its run.json equals `description` (JSON: all
    that makes a run this run). The system releases the lock even if the process is killed.

    Raises InputError for a folder that cannot be created, that another process is writing, that
    holds another run (its first difference is named), or that holds this run without `resume`.
    """
    filelock = load_extra("filelock")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = filelock.FileLock(folder / ".lock").acquire(timeout=0)
    except filelock.Timeout:
        raise InputError(f"{folder}: another run is writing here; choose another folder") from None
    except OSError as error:
        raise InputError(f"{folder}: could not be created ({error.strerror})") from None
    mark = folder / "run.json"
    with lock:
        if not (mark.exists() or any(folder.glob("samples-*.jsonl"))):
            replace_file(mark, json.dumps(description, indent=1) + "\n")
        elif difference := _first_difference(mark, _flat(description)):
            raise InputError(f"{folder} holds another run ({difference}); choose another folder")
        elif not resume:
            raise InputError(f"{folder} holds this run; go on with --resume or use another folder")
        yield


def _first_difference(mark: Path, here: dict[str, Any]) -> str:
    """Where the description in the file `mark` first differs from `here`, and how; else empty."""
    try:
        there = _flat(json.loads(mark.read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        raise InputError(f"{mark}: not readable ({error}); choose another folder") from None
    for place in {**there, **here}:
        a, b = (json.dumps(values.get(place, "missing")) for values in (there, here))
        if a != b:
            return f"{place} is {a} there and {b} here"
    return ""


def _flat(value: Any, place: str = "") -> dict[str, Any]:
    """The values in a JSON value by their places, such as "tasks.words.hash" and "seeds.0"."""
    if not value or not isinstance(value, (dict, list, tuple)):
        return {place.lstrip("."): value}
    items = value.items() if isinstance(value, dict) else enumerate(value)
    found: dict[str, Any] = {}
    for key, one in items:
        found |= _flat(one, f"{place}.{key}")
    return found
