"""Check a packed forward pass: python check_vectors.py ADAPTER.py [DTYPE] [FOLDER]

FOLDER: v1 (beside this file), or v1/llama, one model of it.
ADAPTER.py has `logits(weights, config, ...)`, or others of TIMES. Each asks by its parameters'
names for what it wants of a row: tokens, positions, mask, ... (docs/vectors.md).
"""

import inspect
import json
import runpy
import sys
from pathlib import Path

import numpy as np
from safetensors import safe_open

TOLERANCE = {"float64": 5e-3, "float32": 5e-3, "float16": 0.1, "bfloat16": 0.3}
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


def check(adapter, dtype="float64", folder=Path(__file__).parent / "v1"):
    """For each result that adapter and row have: where, kind, how far off, what is wrong."""
    functions = runpy.run_path(str(adapter))
    for path in sorted(Path(folder).rglob("*.safetensors")):
        if path.stem == "model":
            continue
        (file, about), config = read(path), json.loads((path.parent / "config.json").read_text())
        given = {n[4:]: x for n, x in file.items() if n.startswith("row.")}
        given |= {"weights": read(path.parent / "model.safetensors")[0], "config": config}
        given |= {"dtype": dtype, "folder": path.parent}
        for kind in [kind for kind in TIMES if kind in functions]:
            wanted = list(inspect.signature(functions[kind]).parameters)
            if given.keys() >= set(wanted) and (kind != "gradients" or "wrong.gradients" in file):
                got = functions[kind](**{name: given[name] for name in wanted})
                if got is not None:  # None: the adapter cannot run this row
                    rows, far, near = compare(kind, got, file)
                    words = json.loads(about["facts"])["words"].values()
                    text = explain(rows, far, near, TOLERANCE[dtype] * TIMES[kind], words)
                    yield f"{path.parent.name}/{path.stem}", kind, far.max(), text


if __name__ == "__main__":
    sys.path.insert(0, str(Path(sys.argv[1]).parent))
    failed = []
    for row, kind, far, text in check(*sys.argv[1:]):
        failed.append(bool(text))
        print("FAIL" if text else "pass", f"{row:27} {kind:9} {far:8.1e}  {text}", flush=True)
    print(f"{len(failed) - sum(failed)} pass, {sum(failed)} FAIL")
    if not failed:
        sys.exit("nothing ran: no row has all that the functions ask for")
    sys.exit(any(failed))
