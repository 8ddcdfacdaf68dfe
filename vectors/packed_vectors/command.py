"""Check packed code, and its gradients: packed-vectors ADAPTER.py [DTYPE] [FOLDER] [--json FILE]

Exit status: 0 all that ran is right, 1 something is wrong or nothing ran, 2 unusable arguments.
"""

import argparse
import json
import platform
import sys
from collections import Counter
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from packed_vectors import FORMAT, VECTORS, __version__
from packed_vectors.adapters import Adapter
from packed_vectors.check import check, rows_in
from packed_vectors.comparing import TOLERANCE, Unusable

# Whose versions a report names, if the adapter imported them.
LIBRARIES = ("numpy", "safetensors", "torch", "transformers", "jax", "mlx", "triton", "tinygrad")
LIBRARIES = (*LIBRARIES, "fla", "mamba_ssm", "causal_conv1d", "flash_attn", "tensorflow", "minise")


def report(adapter, dtype, results):
    """What a machine reads: the results, what was not run and why, versions, device, dtype."""
    versions = {"python": platform.python_version(), "packed_vectors": __version__}
    for name in LIBRARIES:
        if name in sys.modules:
            versions[name] = version_of(name)
    ran = [asdict(one) for one in results if one.far is not None]
    skipped = [{"row": x.row, "kind": x.kind, "why": x.why} for x in results if x.far is None]
    for one in ran:
        del one["why"]
        one["passed"] = not one["said"]
    head = {"format": FORMAT, "adapter": Path(adapter.path).name, "dtype": dtype}
    head |= {"device": adapter.device, "machine": platform.platform(), "versions": versions}
    return head | {"results": ran, "skipped": skipped}


def version_of(module):
    for name in (module, module.replace("_", "-"), "flash-linear-attention"):
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return getattr(sys.modules[module], "__version__", "unknown")


def kept_in(results, found):
    """As they come: a slow adapter is seen to go on."""
    for one in found:
        results.append(one)
        yield one


def show(results):
    """Print a line for each result, and the sum. Why it is no pass, or nothing."""
    passed, failed, skipped = Counter(), Counter(), Counter()
    for one in results:
        if one.far is None:
            skipped[one.kind, one.why] += 1
            continue
        (failed if one.said else passed)[one.kind] += 1
        verdict = "FAIL" if one.said else "pass"
        print(verdict, f"{one.row:27} {one.kind:9} {one.far:8.1e}  {one.said}", flush=True)
    for (kind, why), count in skipped.items():
        print(f"not run: {kind} of {count} rows, {why}")
    print(f"{passed.total()} pass, {failed.total()} FAIL, {skipped.total()} not run")
    silent = sorted({kind for kind, _ in skipped} - set(passed) - set(failed))
    silent = [kind for kind in silent if not kind.startswith(("grad_", "final_"))]
    if silent:
        return f"nothing is known of {' and '.join(silent)}: no row was answered"
    if not passed and not failed:
        return "nothing ran: the adapter has no function of a known name, or the folder no row"
    return ""


def main(arguments=None):
    parser = argparse.ArgumentParser("packed-vectors", description=__doc__.split("\n")[0])
    parser.add_argument("adapter", type=Path, help="a file of Python; docs/vectors.md")
    parser.add_argument("dtype", nargs="?", default="float64", choices=TOLERANCE)
    parser.add_argument("folder", nargs="?", type=Path, default=VECTORS)
    parser.add_argument("--json", type=Path, help="where the results go, for a machine")
    options = parser.parse_args(arguments)
    if not options.adapter.is_file():
        parser.error(f"{options.adapter}: no such file; give an adapter")
    if not rows_in(options.folder):
        parser.error(f"{options.folder}: holds no vectors; leave it out, or name a part of them")
    adapter = Adapter(options.adapter)
    results = []
    try:
        silence = show(kept_in(results, check(adapter, options.dtype, options.folder)))
    except Unusable as error:
        print(f"packed-vectors: {error}", file=sys.stderr)
        return 2
    if options.json:
        made = report(adapter, options.dtype, results)
        options.json.write_text(json.dumps(made, indent=1) + "\n")
    if silence:
        print(silence, file=sys.stderr)
    return int(bool(silence) or any(one.said for one in results))
