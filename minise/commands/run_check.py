"""`minise check`: read the file, check the row, print the report."""

from __future__ import annotations

import json
import zipfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from minise.checking.packing_formats import check
from minise.commands.check import CheckRequest
from minise.commands.model import load_model
from minise.errors import InputError, one_line, printable, refusing
from minise.files import json_text, read_bytes
from minise.loading.stored import opened
from minise.memory import free_bytes

MOST_MIB = 64  # of a JSON file: its lists take much more memory
KINDS = (".json", ".safetensors", ".npz")


def run(request: CheckRequest) -> int:
    fields = read_fields(request.file)
    more: dict[str, Any] = {}
    if request.logits is not None:
        more = {"logits": read_logits(request.logits), "tolerance": request.tolerance}
        more["lm"] = load_model(request.model).lm
    if taken := sorted(fields.keys() & {"lm", "logits", "tolerance"}):
        raise InputError(
            f"{request.file}: {taken[0]} is no field; give --logits FILE --model MODEL"
        )
    try:
        report = check(**fields, **more)
    except InputError as error:
        raise InputError(f"{request.file}: {error}") from None
    if request.json:
        facts = {"file": str(request.file), "equal": report.equal, **asdict(report)}
        print(printable(json_text(facts)))
    else:
        print(printable(f"{request.file}: {report}"))
    return 0 if report.equal else 1


def read_fields(path: Path) -> dict[str, Any]:
    """The fields of a file by their names. Raises InputError for a file that is missing, damaged,
    too large or of another kind."""
    kind = path.suffix.lower()
    if kind not in KINDS:
        raise InputError(f"{path}: is not {', '.join(KINDS)}; turn it into one")
    _check_file(path, MOST_MIB << 20 if kind == ".json" else None)
    if kind == ".json":
        return _read_json(path)
    if kind == ".safetensors":
        with opened(path) as file:
            words = file.metadata() or {}
            fields = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            return {name: word for name, word in words.items() if word != "pt"} | _plain(fields)
    what = f"{path}: not readable as NPZ"
    with refusing(what), zipfile.ZipFile(path) as archive:
        size = sum(member.file_size for member in archive.infolist())
    _check_size(path, size)
    with refusing(what), np.load(path, allow_pickle=False) as arrays:
        return _plain({name: arrays[name] for name in arrays})


def read_logits(path: Path) -> torch.Tensor:
    """The tensor "logits" of a .safetensors file, or the only one; or the array of a .npy file."""
    kind = path.suffix.lower()
    if kind not in (".safetensors", ".npy"):
        raise InputError(f"{path}: is not .safetensors or .npy; turn it into one")
    _check_file(path)
    if kind == ".npy":
        with refusing(f"{path}: not readable as NPY"):
            return torch.from_numpy(np.load(path, allow_pickle=False))
    with opened(path) as file:
        names = list(file.keys())
        if "logits" not in names and len(names) != 1:
            raise InputError(f"{path}: has {len(names)} tensors and no logits; call one logits")
        tensor: torch.Tensor = file.get_tensor("logits" if "logits" in names else names[0])
        return tensor


def _read_json(path: Path) -> dict[str, Any]:
    try:
        fields = json.loads(read_bytes(path).decode())
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: not JSON ({one_line(error)}); fix it") from None
    if not isinstance(fields, dict):
        raise InputError(f'{path}: holds no object; write {{"documents": [...], ...}}')
    return fields


def _plain(fields: dict[str, Any]) -> dict[str, Any]:
    """Numbers and texts instead of tensors and arrays without a dimension."""
    return {name: one.item() if one.ndim == 0 else one for name, one in fields.items()}


def _check_file(path: Path, most: int | None = None) -> None:
    if not path.is_file():
        raise InputError(f"{path}: no such file; give the file of a row")
    _check_size(path, path.stat().st_size, most)


def _check_size(path: Path, size: int, most: int | None = None) -> None:
    limit = free_bytes(torch.device("cpu")) if most is None else most
    if limit is not None and size > limit:
        sizes = f"{size / 2**20:,.0f} MiB, over the limit of {limit / 2**20:,.0f}"
        raise InputError(f"{path}: holds {sizes}; cut it to one row")
