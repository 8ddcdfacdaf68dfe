"""How far right and wrong operators are apart: python measure_operators.py [OPERATOR ...]

Every known mistake of every layout, made in each dtype: is it found, and named? And how far off
are right ones? Needs numpy, safetensors and torch.
"""

import json
import sys
from pathlib import Path

import torch
from make_operators import LAYOUTS, described
from operator_mistakes import mistakes, run
from packed_vectors.check import as_read, impossible_in, read
from packed_vectors.comparing import OF_OPERATORS, compare_operator, explain
from torch_operators import Operators

V2 = Path(__file__).parent / "v2" / "operators"


def files(operators):
    """Of each layout: its name, the file's tensors and facts, its inputs, its description."""
    for operator in operators or LAYOUTS:
        inputs, _ = read(V2 / operator / "inputs.safetensors")
        for layout in LAYOUTS[operator]:
            file, about = read(V2 / operator / f"{layout.name}.safetensors")
            facts, d = json.loads(about["facts"]), described(layout)
            given = {n: as_read(inputs[n].astype(float), s) for n, s in facts["shapes"].items()}
            given["grad_out"][~d["real"]] = 0
            if facts["scale"]:
                given["scale"] = facts["scale"]
            if operator == "attention":
                given["sees"] = file["row.mask_in_window"]
            yield f"{operator}/{layout.name}", file, facts, given, d


def judged(results, file, facts, dtype):
    """The largest error of each result, and the mistakes that are named in any of them."""
    limit, words, compared = OF_OPERATORS[str(dtype)[6:]], facts["words"], {}
    for name in (n[6:] for n in file if n.startswith("right.")):
        compared[name] = compare_operator(name, results[name], file, facts)
    impossible = impossible_in(compared.values(), limit, words)
    named, said = set(), []
    for name, one in compared.items():
        text, names = explain(one, limit, words, impossible)
        named |= set(names)
        said += [f"{name}: {text}"] if text else []
    return {name: float(one.far.max()) for name, one in compared.items()}, named, said


def planted(dtype, operators=()):
    """Of each mistake that can be seen: where, its name, how far off at most, if it is named."""
    by = Operators(dtype)
    for where, file, facts, given, d in files(operators):
        operator = where.split("/")[0]
        for name, (text, change) in mistakes(operator, given, d, facts["window"]).items():
            if name in facts["invisible"]:
                continue
            far, named, said = judged(run(operator, given, d, change, by), file, facts, dtype)
            is_named = any(text in facts["words"][n] for n in named if n)
            yield where, name, max(far.values()), is_named, said


def right(dtype, operators=()):
    """Of each layout: where, and how far each result of the plain scan in this dtype is off."""
    by = Operators(dtype)
    for where, file, facts, given, d in files(operators):
        far, _, said = judged(run(where.split("/")[0], given, d, None, by), file, facts, dtype)
        yield where, far, said


def main(*operators):
    torch.set_num_threads(1)
    for dtype in (getattr(torch, name) for name in reversed(OF_OPERATORS)):
        errors = {}
        for where, far, said in right(dtype, operators):
            for name, x in far.items():
                kind = name if name in ("out", "final_states") else "gradients"
                errors[kind] = max(errors.get(kind, 0), x)
            if said:
                print("  a right one fails:", where, said)
        found = list(planted(dtype, operators))
        seen = [x for x in found if x[4]]
        where, name, far, _, _ = min(found, key=lambda x: x[2])
        print(f"{str(dtype)[6:]:9} {len(found)} mistakes, {len(seen)} found,", end=" ")
        print(f"{sum(x[3] for x in found)} named; smallest {far:.2f}, {name} in {where};", end=" ")
        print("rounding", ", ".join(f"{n} {x:.1e}" for n, x in errors.items()), flush=True)
        for where, name, far, is_named, said in found:
            if not is_named:
                print(f"  missed: {where} {name} {far:.3f}: {said or 'passes'}")


if __name__ == "__main__":
    main(*sys.argv[1:])
