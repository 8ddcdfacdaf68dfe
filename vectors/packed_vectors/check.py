"""Run an adapter on the vectors: a result for each row and each thing that it is asked for."""

import json
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from safetensors import safe_open

from packed_vectors import VECTORS
from packed_vectors.adapters import KINDS, Adapter
from packed_vectors.comparing import (
    OF_OPERATORS,
    TIMES,
    TOLERANCE,
    Unusable,
    compare,
    compare_operator,
    explain,
    ruled_out,
)


@dataclass
class Result:
    """row: such as llama/tree, or operators/kda/tree. kind: logits, out, grad_q, ... far: how far
    off, and None where it was not run, with `why`. said: what is wrong, in words; none: right.
    mistakes: the names of the known ones."""

    row: str
    kind: str
    far: float | None = None
    limit: float | None = None
    said: str = ""
    mistakes: list[str] = field(default_factory=list)
    why: str = ""


def read(path):
    """The tensors of a file, and its metadata."""
    with safe_open(path, "numpy") as file:
        return {name: file.get_tensor(name) for name in file.keys()}, file.metadata()  # noqa: SIM118


def rows_in(folder=VECTORS):
    """The paths of all rows below a folder, in order."""
    beside = ("model", "inputs")
    return [path for path in sorted(Path(folder).rglob("*.safetensors")) if path.stem not in beside]


def name_of(path):
    """operators/kda/tree, or llama/tree."""
    parts = path.resolve().with_suffix("").parts
    return "/".join(parts[-3:] if parts[-3] == "operators" else parts[-2:])


def check(adapter, dtype="float64", folder=VECTORS):
    """A Result for each thing that a row is asked for. adapter: an Adapter, or the path of one."""
    adapter = adapter if isinstance(adapter, Adapter) else Adapter(adapter)
    for path in rows_in(folder):
        yield from check_row(adapter, dtype, path)


def check_row(adapter, dtype, path):
    file, about = read(path)
    facts = json.loads(about["facts"])
    given = {name[4:]: x for name, x in file.items() if name.startswith("row.")}
    given["dtype"] = dtype
    if "operator" in facts:
        return of_operator(adapter, path, file, facts, given)
    return of_model(adapter, path, file, facts, given)


def of_model(adapter, path, file, facts, given):
    config = json.loads((path.parent / "config.json").read_text())
    asked = [kind for kind in KINDS if kind in adapter.functions]
    if config["model_type"] not in adapter.model_types:
        for kind in asked:
            why = f"MODEL_TYPES of the adapter have no {config['model_type']}"
            yield Result(name_of(path), kind, why=why)
        return
    given |= {"weights": read(path.parent / "model.safetensors")[0], "config": config}
    given["folder"] = path.parent
    for kind in asked:
        if kind == "gradients" and "wrong.gradients" not in file:
            continue
        got, why = adapter.answer(kind, given)
        if why:
            yield Result(name_of(path), kind, why=why)
            continue
        limit = TOLERANCE[given["dtype"]] * TIMES[kind]
        yield judged(name_of(path), kind, compare(kind, got, file), limit, facts["words"])


def of_operator(adapter, path, file, facts, given):
    name = facts["operator"]
    if name not in adapter.functions:
        return
    inputs = read(path.parent / "inputs.safetensors")[0]
    for one, shape in facts["shapes"].items():
        given[one] = as_read(inputs[one], shape)
    padding = ~file["row.real"]
    given["grad_out"][padding] = 0
    given |= {n: facts[n] for n in ("scale", "window") if facts[n] is not None}
    results = [n[6:] for n in file if n.startswith("right.")]
    got, why = adapter.answer(name, given)
    if why:
        for kind in results:
            yield Result(name_of(path), kind, why=why)
        return
    got = got if isinstance(got, dict) else {"out": got}
    unknown = sorted(set(got) - set(results))
    if unknown:
        raise Unusable(f"{name}: {unknown[0]} is no result; it has {', '.join(sorted(results))}")
    limit, words, compared = OF_OPERATORS[given["dtype"]], facts["words"], {}
    for kind in results:
        if got.get(kind) is None:
            yield Result(name_of(path), kind, why=f"the adapter gives no {kind}")
        else:
            compared[kind] = compare_operator(kind, got[kind], file, facts)
    impossible = impossible_in(compared.values(), limit, words)
    for kind, one in compared.items():
        yield judged(name_of(path), kind, one, limit, words, impossible)


def impossible_in(compared, limit, words):
    """The mistakes that one of the results, which is right, rules out."""
    return set().union(*(ruled_out(one, limit, words) for one in compared))


def as_read(x, shape):
    """The first numbers of a file's inputs, as a layout has them: a copy. (tokens, numbers) are
    heads of the layout's size, and as many as it has."""
    if len(shape) == 3 and x.ndim == 2:
        return x.reshape(len(x), -1, shape[2])[:, : shape[1]].copy()
    return x[tuple(slice(0, n) for n in shape)].copy()


def judged(row, kind, compared, limit, words, impossible=()):
    said, names = explain(compared, limit, words, impossible)
    return Result(row, kind, float(np.max(compared.far)), limit, said, [n for n in names if n])
