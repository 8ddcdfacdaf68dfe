"""How far right and wrong are apart: python measure.py WHAT ... Needs what the adapters need.

adapters [NAME ...] [--device cuda]   the largest error of each adapter, in each dtype
mistakes                              every known mistake, in each dtype: is it found, and named?
pairs [MODEL]                         two mistakes at once: what is said?
seeds FIRST LAST                      other weights and rows: the smallest mistake, and rounding
"""

import collections
import itertools
import json
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
from packed_vectors.check import check, read
from packed_vectors.comparing import TOLERANCE, compare, explain, off

ADAPTERS = Path(__file__).parent / "adapters"
OF_ERRORS = ("logits", "ends", "out", "final_states")  # and not losses and gradients
DTYPES = [getattr(torch, name) for name in TOLERANCE]
torch.set_num_threads(1)


def files(model="*"):
    """Of each row: where, the tensors of its file, facts, weights, config."""
    for path in sorted(V1.glob(f"{model}/*.safetensors")):
        file, about = read(path)
        if "facts" in about:
            weights = read(path.parent / "model.safetensors")[0]
            config = json.loads((path.parent / "config.json").read_text())
            yield path, file, json.loads(about["facts"]), weights, config


def known(file, facts, config):
    """The row's description, and its mistakes that can be seen: name -> (in words, change)."""
    d = {name[4:]: x for name, x in file.items() if name.startswith("row.")}
    found = mistakes(facts["row"], config, d, windows(config))
    return d, {n: x for n, x in found.items() if n not in facts["invisible"]}


@torch.no_grad()
def said(file, facts, logits, dtype):
    """How far logits are off, and what the check says of them."""
    compared = compare("logits", logits.double().numpy(), file)
    return compared.far.max(), explain(compared, TOLERANCE[dtype], facts["words"])[0]


def planted(dtype, model="*"):
    """Every visible mistake, made in `dtype`: row, name, how far off, what is said, if truly."""
    for path, file, facts, weights, config in files(model):
        w = {n: torch.tensor(x).to(dtype) for n, x in weights.items()}
        d, those = known(file, facts, config)
        for name, (text, change) in those.items():
            logits = wrong(w, config, d, change)
            far, words = said(file, facts, logits, str(dtype)[6:])
            yield f"{path.parent.name}/{path.stem}", name, far, words, text in words


def of_mistakes():
    for dtype in DTYPES:
        results = list(planted(dtype))
        missed = [x[:4] for x in results if not x[4]]
        found = sum(bool(x[3]) for x in results)
        row, name, far, _, _ = min(results, key=lambda x: x[2])
        print(f"{str(dtype)[6:]:9} {len(results)} mistakes, {found} found,", end=" ")
        print(
            f"{len(results) - len(missed)} named; smallest {far:.2f}, {name} in {row}", flush=True
        )
        for row, name, far, words in missed:
            print(f"  missed: {row} {name} {far:.2f}: {words or 'passes'}")


def pairs(model="*"):
    """Two mistakes at once can be told apart if each has a wrong token that is as with it alone,
    and as with no other known mistake."""
    count = collections.Counter()
    for path, file, facts, weights, config in files(model):
        w = {n: torch.tensor(x).double() for n, x in weights.items()}
        d, those = known(file, facts, config)
        real = d["real"]
        good = torch.tensor(file["right.logits"])[real]
        # Mistakes that give the same row share their words: they are one.
        name = {n: next(x for x in facts["words"].values() if those[n][0] in x) for n in those}
        alone = {name[n]: wrong(w, config, d, those[n][1])[real] for n in those}
        for a, b in itertools.combinations(those, 2):
            if those[a][1].keys() & those[b][1].keys() or name[a] == name[b]:
                continue  # they change the same thing
            got = wrong(w, config, d, those[a][1] | those[b][1])
            _, words = said(file, facts, got, "float64")
            is_it = {n: (got[real] - x).abs().amax(1) < 1e-9 for n, x in alone.items()}
            only_one = torch.stack(list(is_it.values())).sum(0) == 1
            changed = (got[real] - good).abs().amax(1) > 1e-6
            apart = all((is_it[name[n]] & only_one & changed).any() for n in (a, b))
            named = sum(name[n] in words for n in (a, b))
            others = sum(n in words for n in alone) - named
            where = "can be told apart" if apart else "cannot be told apart"
            count[f"{where}: {named} named, {others} others" if words else "passes"] += 1
            if not words or (apart and named < 2):
                print(f"  {path.parent.name}/{path.stem} {a} + {b}: {words}")
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
        cells = []
        for dtype in TOLERANCE:
            try:
                everything = check(ADAPTERS / f"{name}.py", dtype)
                found = [one for one in everything if one.far is not None]
                errors = [x.far for x in found if x.kind in OF_ERRORS and not x.said]
                wrong = sum(bool(x.said) for x in found)
                cells.append(f"{max(errors, default=0):7.1e} {wrong}/{len(found)}")
            except Exception as error:  # what a library refuses is a result
                cells.append(f"{type(error).__name__}: {error}"[:60].replace("\n", " "))
        print(f"{name:22}", *(f"{cell:16}" for cell in cells), flush=True)


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
    with torch.no_grad() if what != "adapters" else torch.enable_grad():
        {"adapters": adapters, "mistakes": of_mistakes, "pairs": pairs, "seeds": seeds}[what](*rest)
