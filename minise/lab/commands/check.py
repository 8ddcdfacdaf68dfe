"""Check another's packed row: is it equal to separate runs, and if not, what is wrong?

FILE holds what was meant (the lengths of documents, or of a trunk and branches) and what a model is
given (position ids, a mask or cu_seqlens, labels), as .json, .safetensors or .npz: docs/check.md
lists the fields. The first wrong cell, position or label is said in words, with the known mistake
that explains it. Nothing is run. Exit status 1 if the row is not equal, or if tokens of it cannot
be judged: they belong to no prompt and are not said to be padding, or the mask adds a bias.

example: minise check row.json
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any
from zipfile import ZipFile

from minise.commands.options import Option
from minise.errors import InputError, printable, quote, refusing
from minise.memory import free_bytes

JSON_LIMIT = 64 << 20  # bytes of a JSON file: its lists take much more memory


@dataclass(frozen=True)
class Options:
    file: Annotated[Path, Option("the row", "FILE", positional=True)]
    allow_unjudged: Annotated[bool, Option("tokens that cannot be judged are no failure")] = False
    json: Annotated[bool, Option("print one JSON object")] = False


def run(options: Options) -> int:
    from minise.lab.packing.judging import check

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
    if not path.is_file():
        raise InputError(f"{path}: no such file; name one that is there")
    if kind not in (".json", ".safetensors", ".npz"):
        raise InputError(f"{path}: is no .json, .safetensors or .npz; write the row as one of them")
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
            read = json.loads(path.read_bytes(), object_pairs_hook=each_name_once)
        elif kind == ".npz":
            read = read_npz(path)
        else:
            read = read_safetensors(path)
    if not isinstance(read, dict):
        raise InputError(f"{path}: holds {quote(read)}; give an object of fields (docs/check.md)")
    fields = {}
    for name, value in read.items():
        # A number or a text instead of a tensor or an array without a dimension.
        is_single = getattr(value, "ndim", 1) == 0
        fields[name] = value.item() if is_single else value
    return fields


def each_name_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for name, value in pairs:
        if name in fields:
            raise InputError(f"{quote(name)} stands twice")
        fields[name] = value
    return fields


def read_npz(path: Path) -> dict[str, Any]:
    import numpy as np

    with np.load(path, allow_pickle=False) as arrays:
        return each_name_once(list(arrays.items()))


def read_safetensors(path: Path) -> dict[str, Any]:
    """Its tensors, and the words of its metadata."""
    from safetensors import safe_open

    with safe_open(path, "pt") as file:
        tensors = [(name, file.get_tensor(name)) for name in file.keys()]  # noqa: SIM118
        words = file.metadata() or {}
    words.pop("format", None)
    return each_name_once([*tensors, *words.items()])
