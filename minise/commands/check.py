"""Check another's packed row: is it equal to separate runs, and if not, what is wrong?

FILE holds what was meant (the lengths of documents, or of a trunk and branches) and what a model is
given (position ids, a mask or cu_seqlens, labels), as .json, .safetensors or .npz: docs/check.md
lists the fields. The first wrong cell, position or label is said in words, with the known mistake
that explains it. Nothing is run. Exit status 1 if the row is not equal, or if it has tokens that
belong to no prompt and that it does not say are padding: nothing is promised for these.

example: minise check row.json
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any
from zipfile import ZipFile

from minise.commands.options import Option
from minise.errors import InputError, printable, refusing
from minise.memory import free_bytes

JSON_LIMIT = 64 << 20  # bytes of a JSON file: its lists take much more memory


@dataclass(frozen=True)
class Options:
    file: Annotated[Path, Option("the row", "FILE", positional=True)]
    allow_unjudged: Annotated[bool, Option("tokens of no prompt are no failure")] = False
    json: Annotated[bool, Option("print one JSON object")] = False


def run(options: Options) -> int:
    from minise.verify.judging import check

    path = options.file
    fields = read_fields(path)
    try:
        report = check(**fields)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    if options.json:
        print(json.dumps({"file": str(path), "equal": report.equal, **asdict(report)}))
    else:
        print(printable(f"{path}: {report}"))
    is_excused = options.allow_unjudged and not report.findings
    return 0 if report.equal or is_excused else 1


def read_fields(path: Path) -> dict[str, Any]:
    """The fields of a file by their names. Raises InputError for a file that is missing, damaged,
    too large or of another kind."""
    kind = path.suffix.lower()
    if kind not in (".json", ".safetensors", ".npz") or not path.is_file():
        raise InputError(f"{path}: no such file, or not .json, .safetensors or .npz")
    unreadable = f"{path}: not readable as {path.suffix[1:]}"
    size = path.stat().st_size
    if kind == ".npz":
        with refusing(unreadable), ZipFile(path) as packed:
            size = sum(member.file_size for member in packed.infolist())  # what it unpacks to
    limit = JSON_LIMIT if kind == ".json" else free_bytes()
    if limit is not None and size > limit:
        raise InputError(f"{path}: holds {size:,} bytes, over {limit:,}; cut it to one row")
    with refusing(unreadable):
        if kind == ".json":
            return dict(json.loads(path.read_bytes()))
        if kind == ".npz":
            read = read_npz(path)
        else:
            read = read_safetensors(path)
    fields = {}
    for name, value in read.items():
        # A number or a text instead of a tensor or an array without a dimension.
        is_single = getattr(value, "ndim", 1) == 0
        fields[name] = value.item() if is_single else value
    return fields


def read_npz(path: Path) -> dict[str, Any]:
    import numpy as np

    with np.load(path, allow_pickle=False) as arrays:
        return dict(arrays)


def read_safetensors(path: Path) -> dict[str, Any]:
    """Its tensors, and the words of its metadata."""
    from safetensors import safe_open

    fields: dict[str, Any] = {}
    with safe_open(path, "pt") as file:
        for name in list(file.keys()):  # the file itself has no keys to walk over
            fields[name] = file.get_tensor(name)
        words = file.metadata() or {}
    words.pop("format", None)
    return {**fields, **words}
