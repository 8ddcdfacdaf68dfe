"""A run's folder: one run's, one process's at a time, its files whole or not there."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from minise.errors import InputError
from minise.evaluation.metrics import load_extra


@contextmanager
def open_folder(folder: Path, description: dict[str, Any], resume: bool) -> Iterator[None]:
    """A run's folder, for this process alone: new, or holding the run so described.

    The system frees the lock when a process ends, however it does.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{folder}: could not be made a folder ({error.strerror})") from None
    filelock = load_extra("filelock")
    lock = filelock.FileLock(folder / ".lock", timeout=0)
    try:
        lock.acquire()
    except filelock.Timeout:
        raise InputError(
            f"{folder}: another run is writing here; wait, or choose another"
        ) from None
    try:
        _begin(folder, description, resume)
        yield
    finally:
        lock.release()


def replace_file(path: Path, text: str) -> None:
    """Write a file whole or not at all."""
    beside = path.with_name(path.name + ".partial")
    try:
        beside.write_text(text, encoding="utf-8")
        os.replace(beside, path)
    except OSError as error:
        raise InputError(f"{path}: could not be written ({error.strerror})") from None


def _begin(folder: Path, wanted: dict[str, Any], resume: bool) -> None:
    """Mark the folder as this run's, or make sure that it is."""
    mark = folder / "run.json"
    if mark.exists():
        try:
            there = json.loads(mark.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise InputError(f"{mark}: not readable ({error}); choose another folder") from None
        if there != wanted:
            raise InputError(
                f"{folder} holds another run ({_first_difference(there, wanted)}); "
                "choose another folder"
            )
        if not resume:
            raise InputError(
                f"{folder} holds this run already; go on with --resume, or choose another folder"
            )
        return
    if any(folder.glob("samples-*.jsonl")):
        raise InputError(f"{folder} holds samples but no run.json; choose another folder")
    replace_file(mark, json.dumps(wanted, indent=1) + "\n")


def _first_difference(there: Any, here: Any, where: str = "") -> str:
    """Where two descriptions part, for a person."""
    if isinstance(there, dict) and isinstance(here, dict):
        for key in [*there, *here]:
            if there.get(key) != here.get(key):
                name = f"{where}.{key}" if where else key
                return _first_difference(there.get(key), here.get(key), name)
    if isinstance(there, list) and isinstance(here, list) and len(there) == len(here):
        for i, (a, b) in enumerate(zip(there, here, strict=True)):
            if a != b:
                return _first_difference(a, b, f"{where}[{i}]")
    return f"{where} is {json.dumps(there)} there and {json.dumps(here)} here"
