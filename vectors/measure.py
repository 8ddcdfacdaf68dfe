"""How far right and wrong are apart: python measure.py WHAT ... Needs what the adapters need.

adapters [NAME ...] [--device cuda]   the largest error of each adapter's results and gradients, and
                                      how many of them are wrong, in each part and dtype
mistakes [PART ...]                   every known mistake of models, hybrids, operators, in each
                                      dtype: is it found, and named? And how far off is a right run?
pairs [MODEL]                         two mistakes at once: what is said?
seeds FIRST LAST                      other weights and rows: the smallest mistake, and rounding
"""

import collections
import itertools
import os
import platform
import statistics
import sys
from pathlib import Path

import numpy as np
import torch
from layouts import describe, rows
from make_vectors import MODELS, V1, random_weights, right, windows, wrong
from mistakes import mistakes
from packed_vectors.check import check
from packed_vectors.comparing import TOLERANCE, off
from planted import PARTS, files, known, said_of

ADAPTERS = Path(__file__).parent / "adapters"
torch.set_num_threads(1)


def of_mistakes(*parts):
    for part, dtype in itertools.product(parts or PARTS, TOLERANCE):
        results = list(PARTS[part](dtype))
        rounding = {}
        for one in results:
            if one.name:
                continue
            for name, far in one.far.items():
                kind = "gradients" if name.startswith("grad_") else name
                rounding[kind] = max(rounding.get(kind, 0), far)
            if one.said:
                print("  a right one fails:", one.where, one.said)
        found = [one for one in results if one.name]
        least = min(found, key=lambda one: max(one.far.values()))
        print(f"{part:9} {dtype:8} {len(found)} mistakes,", end=" ")
        print(
            f"{sum(bool(x.said) for x in found)} found, {sum(x.named for x in found)} named;",
            end="",
        )
        print(f" smallest {max(least.far.values()):.2f}, {least.name} in {least.where};", end=" ")
        print("rounding", ", ".join(f"{n} {x:.1e}" for n, x in rounding.items()), flush=True)
        for one in found:
            if not one.named:
                print(f"  missed: {one.where} {one.name} {one.far}: {one.said or 'passes'}")


def pairs(model="*"):
    """Two mistakes at once can be told apart if each has a wrong token that is as with it alone,
    and as with no other known mistake."""
    count = collections.Counter()
    for where, file, facts, weights, config, d in files(V1, model):
        w = {n: torch.tensor(x).double() for n, x in weights.items()}
        those, real = known(facts, config, d), d["real"]
        good = torch.tensor(file["right.logits"])[real]
        # Mistakes that give the same row share their words: they are one.
        name = {n: next(x for x in facts["words"].values() if those[n][0] in x) for n in those}
        alone = {name[n]: wrong(w, config, d, those[n][1])[real] for n in those}
        for a, b in itertools.combinations(those, 2):
            if those[a][1].keys() & those[b][1].keys() or name[a] == name[b]:
                continue  # they change the same thing
            got = wrong(w, config, d, those[a][1] | those[b][1])
            _, words = said_of(file, facts, got.numpy(), "float64")
            is_it = {n: (got[real] - x).abs().amax(1) < 1e-9 for n, x in alone.items()}
            only_one = torch.stack(list(is_it.values())).sum(0) == 1
            changed = (got[real] - good).abs().amax(1) > 1e-6
            apart = all((is_it[name[n]] & only_one & changed).any() for n in (a, b))
            named = sum(name[n] in words for n in (a, b))
            others = sum(n in words for n in alone) - named
            those_two = "can be told apart" if apart else "cannot be told apart"
            count[f"{those_two}: {named} named, {others} others" if words else "passes"] += 1
            if not words or (apart and named < 2):
                print(f"  {where} {a} + {b}: {words}")
    for key, number in sorted(count.items()):
        print(number, key)


def seeds(first, last):
    """By model: the smallest mistake, the largest error of plain torch in bfloat16, the ratio."""
    for number, (name, config) in enumerate(MODELS.items()):
        found = []
        for seed in range(int(first), int(last)):
            rng = np.random.default_rng([seed, number])
            weights = random_weights(config, rng)
            w = {n: torch.tensor(x).double() for n, x in weights.items()}
            half = {n: x.bfloat16() for n, x in w.items()}
            smallest, error = np.inf, 0
            for row, tokens in rows(rng).items():
                d = describe(row, tokens)
                good = right(w, config, d)[d["real"]].numpy()
                for _, change in mistakes(row, config, d, windows(config)).values():
                    far = off(wrong(w, config, d, change)[d["real"]].numpy(), good, good).max()
                    smallest = min(smallest, far) if far > 1e-9 else smallest
                rounded = wrong(half, config, d, {})[d["real"]].double().numpy()
                error = max(error, off(rounded, good, good).max())
            found.append((smallest, error, smallest / error))
        print(name, end="")
        for what, values in zip(
            ("smallest", "error", "ratio"), zip(*found, strict=True), strict=True
        ):
            low, middle, high = min(values), statistics.median(values), max(values)
            print(f"  {what} {low:.2f} {middle:.2f} {high:.2f}", end="")
        print(flush=True)


def adapters(*names):
    for name in names or sorted(path.stem for path in ADAPTERS.glob("*.py")):
        for dtype in TOLERANCE:
            try:
                found = [x for x in check(ADAPTERS / f"{name}.py", dtype) if x.far is not None]
            except Exception as error:  # what a library refuses is a result
                words = " ".join(f"{type(error).__name__}: {error}".split())
                print(f"{name:22} {dtype:8} {words[:90]}", flush=True)
                continue
            for part in sorted({part_of(one.row) for one in found}):
                those = [one for one in found if part_of(one.row) == part]
                largest = {}
                for one in those:
                    kind = "gradients" if one.kind.startswith("grad") else one.kind
                    largest[kind] = max(largest.get(kind, 0), 0 if one.said else one.far)
                wrong = sum(bool(one.said) for one in those)
                errors = ", ".join(f"{kind} {far:.1e}" for kind, far in largest.items())
                said = f"{wrong} of {len(those)} wrong; {errors}"
                print(f"{name:22} {dtype:8} {part:9} {said}", flush=True)


def part_of(row):
    """models, hybrids or operators."""
    first = row.split("/")[0]
    return "operators" if first == "operators" else "models" if first in MODELS else "hybrids"


def machine():
    facts = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    model = [line.partition(":")[2].strip() for line in facts.splitlines() if "model name" in line]
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
    return f"{(model or [platform.processor()])[0]}, {gpu}, torch {torch.__version__}"


if __name__ == "__main__":
    what, *rest = sys.argv[1:]
    if "--device" in rest:
        os.environ["DEVICE"] = rest.pop(rest.index("--device") + 1)
        rest.remove("--device")
    sys.path.insert(0, str(ADAPTERS))
    print(machine())
    with torch.set_grad_enabled(what in ("adapters", "mistakes")):
        {"adapters": adapters, "mistakes": of_mistakes, "pairs": pairs, "seeds": seeds}[what](*rest)
