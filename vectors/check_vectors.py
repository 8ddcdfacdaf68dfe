"""Check a packed forward pass: python check_vectors.py ADAPTER.py [DTYPE] [FOLDER]

FOLDER: v1 (beside this file), or v1/llama, one model of it.
ADAPTER.py has `logits(weights, config, ...)`, or others of TIMES. Each asks by its parameters'
names for what it wants of a row: tokens, positions, mask, ... (docs/vectors.md). It gets copies:
what it changes is not what its results are compared with.
"""

import copy
import inspect
import json
import runpy
import sys
from collections import Counter
from pathlib import Path

import numpy as np
from safetensors import safe_open

TOLERANCE = {"float64": 5e-3, "float32": 5e-3, "float16": 0.1, "bfloat16": 0.3}
NAMES = (
    *("tokens", "positions", "mask", "mask_in_window", "parents", "documents", "real"),
    *("cu_seqlens", "until", "prompts", "ends", "cached", "edges", "labels", "labels_shifted"),
    *("M", "Pos", "index", "Q", "G", "weights", "config", "folder", "dtype"),
)
TIMES = {"logits": 1, "ends": 1, "loss": 0.05, "gradients": 2}  # of that tolerance
PROBE = "model.layers.0.input_layernorm.weight"  # whose gradient the mistakes have


def read(path):
    with safe_open(path, "numpy") as file:
        return {name: file.get_tensor(name) for name in file.keys()}, file.metadata()  # noqa: SIM118


def off(got, right, like):
    """The largest difference along the last axis, by the root mean square of `like`."""
    far = np.abs(np.asarray(got, np.float64) - right).max(-1) / np.sqrt(np.mean(np.square(like)))
    return np.where(np.isnan(far), np.inf, far)


def compare(kind, got, file):
    """What is compared (tokens, weights), how far off each is, and how far from each mistake."""
    if kind == "gradients":
        right = {n[16:]: x.flatten() for n, x in file.items() if n.startswith("right.gradients.")}
        far = np.array([off(np.ravel(got[n]), x, x) for n, x in right.items()])
        return list(right), far, off(got[PROBE], file["wrong.gradients"], right[PROBE])[:, None]
    if kind == "loss":
        right, wrong, got = file["right.loss"][None], file["wrong.loss"][:, None], np.ravel(got)
        return ["loss"], off(got, right, right)[None], off(got, wrong, right)[:, None]
    rows = file["row.ends"] if kind == "ends" else np.flatnonzero(file["row.real"])
    got = np.asarray(got) if kind == "ends" else np.asarray(got)[rows]
    right, wrong = file["right.logits"][rows], file["wrong.logits"][:, rows]
    return rows, off(got, right, right), off(got[:, : wrong.shape[2]], wrong, right)


def explain(rows, far, near, limit, words):
    """Row by row the known mistake that is as near as a right result would be. First the one that
    explains most wrong rows, less the right rows that it would make wrong; of two, the nearer."""
    left, said = far > limit, []
    explained = np.vstack([(near <= limit) & (near < far / 4), left])
    against = ((near > 4 * limit) & ~left).sum(1) + np.minimum(near, 1).mean(1)
    while left.any():
        here = explained & left
        score = here.sum(1) - np.append(against, len(far) ** 2)
        best = np.argmax(np.where(here.any(1), score, -np.inf))
        name, first = [*words, "no known mistake"][best], rows[np.argmax(here[best])]
        said.append(f"{name} ({here[best].sum()} of {len(rows)}, first {first})")
        left = left & ~here[best]
    return "; ".join(said)


def parameters_of(name, function):
    """Its parameters by name: whether it can do without one. Ends the program where one is not
    known: a misspelt one would leave the function out of every row."""
    optional = {}
    for parameter in inspect.signature(function).parameters.values():
        if parameter.name not in NAMES or parameter.kind != parameter.POSITIONAL_OR_KEYWORD:
            sys.exit(f"{name}: {parameter} is not known; a parameter is one of {', '.join(NAMES)}")
        optional[parameter.name] = parameter.default is not parameter.empty
    return optional


def check(adapter, dtype="float64", folder=Path(__file__).parent / "v1"):
    """For each result that adapter and row have: where, kind, how far off, what is wrong. Where a
    function is not run, or answers None: no number, and why."""
    functions = runpy.run_path(str(adapter))
    asked = {name: parameters_of(name, functions[name]) for name in TIMES if name in functions}
    for path in sorted(Path(folder).rglob("*.safetensors")):
        if path.stem == "model":
            continue
        (file, about), config = read(path), json.loads((path.parent / "config.json").read_text())
        row = f"{path.parent.name}/{path.stem}"
        given = {n[4:]: x for n, x in file.items() if n.startswith("row.")}
        given |= {"weights": read(path.parent / "model.safetensors")[0], "config": config}
        given |= {"dtype": dtype, "folder": path.parent}
        for kind, optional in asked.items():
            if kind == "gradients" and "wrong.gradients" not in file:
                continue
            missing = [n for n in optional if n not in given and not optional[n]]
            if missing:
                yield row, kind, None, f"the row has no {missing[0]}"
                continue
            of_row = {n: copy.deepcopy(given[n]) for n in optional if n in given}
            got = functions[kind](**of_row)
            if got is None:
                yield row, kind, None, "the adapter answers None"
                continue
            rows, far, near = compare(kind, got, file)
            words = json.loads(about["facts"])["words"].values()
            text = explain(rows, far, near, TOLERANCE[dtype] * TIMES[kind], words)
            yield row, kind, far.max(), text


def main(arguments):
    """Print a line for each result, and the sum. What no function answered is not passed."""
    sys.path.insert(0, str(Path(arguments[0]).parent))
    passed, failed, skipped = Counter(), Counter(), Counter()
    for row, kind, far, text in check(*arguments):
        if far is None:
            skipped[kind, text] += 1
            continue
        (failed if text else passed)[kind] += 1
        print("FAIL" if text else "pass", f"{row:27} {kind:9} {far:8.1e}  {text}", flush=True)
    for (kind, why), count in skipped.items():
        print(f"not run: {kind} of {count} rows, {why}")
    print(f"{passed.total()} pass, {failed.total()} FAIL, {skipped.total()} not run")
    silent = sorted({kind for kind, _ in skipped} - set(passed) - set(failed))
    if silent:
        return f"nothing is known of {' and '.join(silent)}: no row was answered"
    if not passed and not failed:
        return f"nothing ran: the adapter has none of {', '.join(TIMES)}, or the folder no row"
    return int(failed.total() > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
