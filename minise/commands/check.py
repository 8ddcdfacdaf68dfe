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

MOST = 64 << 20  # bytes of a JSON file: its lists take much more memory


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
    facts = {"file": f"{path}", "equal": report.equal, **asdict(report)}
    print(json.dumps(facts) if options.json else printable(f"{path}: {report}"))
    return 0 if report.equal or (options.allow_unjudged and not report.findings) else 1


def read_fields(path: Path) -> dict[str, Any]:
    """The fields of a file by their names. Raises InputError for a file that is missing, damaged,
    too large or of another kind."""
    kind, what = path.suffix.lower(), f"{path}: not readable as {path.suffix[1:]}"
    if kind not in (".json", ".safetensors", ".npz") or not path.is_file():
        raise InputError(f"{path}: no such file, or not .json, .safetensors or .npz")
    size, limit = path.stat().st_size, MOST if kind == ".json" else free_bytes()
    if kind == ".npz":
        with refusing(what), ZipFile(path) as packed:
            size = sum(one.file_size for one in packed.infolist())  # what it unpacks to
    if limit is not None and size > limit:
        raise InputError(f"{path}: holds {size:,} bytes, over {limit:,}; cut it to one row")
    with refusing(what):
        if kind == ".json":
            return dict(json.loads(path.read_bytes()))
        if kind == ".npz":
            import numpy as np

            with np.load(path, allow_pickle=False) as arrays:
                fields = dict(arrays)
        else:
            from safetensors import safe_open

            with safe_open(path, "pt") as file:
                fields = {name: file.get_tensor(name) for name in [*file.keys()]}
                words = file.metadata() or {}
            fields |= {name: word for name, word in words.items() if name != "format"}
    # Numbers and texts instead of tensors and arrays without a dimension.
    return {k: one.item() if getattr(one, "ndim", 1) == 0 else one for k, one in fields.items()}
