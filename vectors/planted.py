"""Every known mistake of the vectors, made in a dtype: how far off it is, and if it is named. So
are right runs, whose name is "". Needs numpy, safetensors and torch."""

import json
from dataclasses import dataclass
from pathlib import Path

import hybrid_mistakes
import hybrids
import make_operators
import operator_mistakes
import torch
from make_vectors import V1, windows, wrong
from mistakes import mistakes
from packed_vectors.check import as_read, impossible_in, read
from packed_vectors.comparing import (
    OF_OPERATORS,
    TOLERANCE,
    compare,
    compare_operator,
    explain,
)
from torch_operators import Operators

V2 = Path(__file__).parent / "v2"


@dataclass
class Planted:
    """where: the row. name: of the mistake. far: the largest error of each result. said: of the
    results, in words; none: they pass. named: whether the mistake is in what is said."""

    where: str
    name: str
    far: dict[str, float]
    said: str
    named: bool


def files(folder, model="*"):
    """Of each row of a model: where, the tensors of its file, facts, weights, config, and what the
    file says of the row."""
    for path in sorted(folder.glob(f"{model}/*.safetensors")):
        file, about = read(path)
        if "facts" in about:
            weights = read(path.parent / "model.safetensors")[0]
            config = json.loads((path.parent / "config.json").read_text())
            d = {name[4:]: x for name, x in file.items() if name.startswith("row.")}
            where = f"{path.parent.name}/{path.stem}"
            yield where, file, json.loads(about["facts"]), weights, config, d


def known(facts, config, d):
    """The mistakes of a row of v1 that can be seen: name -> (in words, change)."""
    found = mistakes(facts["row"], config, d, windows(config))
    return {n: x for n, x in found.items() if n not in facts["invisible"]}


def said_of(file, facts, logits, dtype):
    """How far logits are off, and what the check says of them."""
    compared = compare("logits", logits, file)
    return float(compared.far.max()), explain(compared, TOLERANCE[dtype], facts["words"])[0]


def planted_row(where, file, facts, name, text, logits, dtype):
    far, said = said_of(file, facts, logits, dtype)
    return Planted(where, name, {"logits": far}, said, bool(name) and text in said)


@torch.no_grad()
def of_models(dtype, model="*"):
    """The rows of v1, by plain torch in the dtype."""
    kind = getattr(torch, dtype)
    for where, file, facts, weights, config, d in files(V1, model):
        w = {n: torch.tensor(x).to(kind) for n, x in weights.items()}
        for name, (text, change) in ({"": ("", {})} | known(facts, config, d)).items():
            logits = wrong(w, config, d, change).double().numpy()
            yield planted_row(where, file, facts, name, text, logits, dtype)


def of_hybrids(dtype, model="*"):
    """The rows through recurrent layers: hybrids.py, where each result of an operation is rounded
    to the dtype. States are wide, as in kernels."""

    def hold(x):
        return torch.tensor(x).to(getattr(torch, dtype)).double().numpy()

    for where, file, facts, weights, config, d in files(V2, model):
        runs = {"": ("", hybrid_mistakes.right(d))} | hybrid_mistakes.mistakes(facts["row"], d)
        for name, (text, ways) in runs.items():
            if name in facts["invisible"]:
                continue
            logits = hybrids.logits(weights, config, d["tokens"], ways, hold)
            yield planted_row(where, file, facts, name, text, logits, dtype)


def operator_files(operators=()):
    """Of each layout: its name, the file's tensors and facts, its inputs, its description."""
    for operator in operators or make_operators.LAYOUTS:
        inputs, _ = read(V2 / "operators" / operator / "inputs.safetensors")
        for layout in make_operators.LAYOUTS[operator]:
            file, about = read(V2 / "operators" / operator / f"{layout.name}.safetensors")
            facts, d = json.loads(about["facts"]), make_operators.described(layout)
            given = {n: as_read(inputs[n].astype(float), s) for n, s in facts["shapes"].items()}
            given["grad_out"][~d["real"]] = 0
            if facts["scale"]:
                given["scale"] = facts["scale"]
            if operator == "attention":
                given["sees"] = file["row.mask_in_window"]
            yield f"{operator}/{layout.name}", file, facts, given, d


def of_operators(dtype, operators=()):
    """The layouts of operators, by a plain scan of torch in the dtype."""
    by = Operators(getattr(torch, dtype))
    for where, file, facts, given, d in operator_files(operators):
        operator = where.split("/")[0]
        changes = operator_mistakes.mistakes(operator, given, d, facts["window"])
        for name, (text, change) in ({"": ("", None)} | changes).items():
            if name not in facts["invisible"]:
                results = operator_mistakes.run(operator, given, d, change, by)
                far, named, said = judged(results, file, facts, dtype)
                is_named = any(text in facts["words"][n] for n in named if n)
                yield Planted(where, name, far, said, bool(name) and is_named)


def judged(results, file, facts, dtype):
    """The largest error of each result, the mistakes that are named in any, and what is said."""
    limit, words, compared = OF_OPERATORS[dtype], facts["words"], {}
    for name in (n[6:] for n in file if n.startswith("right.")):
        compared[name] = compare_operator(name, results[name], file, facts)
    impossible = impossible_in(compared.values(), limit, words)
    named, said = set(), []
    for name, one in compared.items():
        text, names = explain(one, limit, words, impossible)
        named |= set(names)
        said += [f"{name}: {text}"] if text else []
    return {name: float(one.far.max()) for name, one in compared.items()}, named, "; ".join(said)


PARTS = {"models": of_models, "hybrids": of_hybrids, "operators": of_operators}
