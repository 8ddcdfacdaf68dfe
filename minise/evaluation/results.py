"""The lines of a run's folder, joined where they are of shards, and all numbers made from them."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from minise.errors import InputError, Unsuited, one_line
from minise.evaluation import folder as files
from minise.evaluation.metrics import difference, holm, measure
from minise.evaluation.request import hash_of
from minise.evaluation.rows import Row, key_of, read_rows
from minise.files import write_file
from minise.methods.fitted import Fitted
from minise.methods.registry import make_method

Named = dict[str, list[Row]]  # lines by their method


@dataclass(frozen=True)
class Pair:
    """The two sides of a difference, a minus b, and what they are called."""

    task: str
    a: str
    b: str
    rows_a: list[Row]
    rows_b: list[Row]


@dataclass(frozen=True)
class Results:
    """A finished run: its lines by task, and results.json, of which `what` is the config."""

    folder: Path
    what: dict[str, Any]
    rows: dict[str, Named]
    content: dict[str, Any]


def read_run(folder: Path) -> Results:
    """Join, fit and measure a run, and write results.json. Raises InputError for a folder that
    holds no run, a part of another run, or not all answers."""
    what = read_what(folder)
    left_out: list[str] = []
    what["left_out"] = left_out
    rows: dict[str, Named] = {}
    for task, facts in what["tasks"].items():
        done, reasons = read_task(folder, task, facts, what["shards"])
        left_out += reasons
        left_out += fit(done, task, facts)
        if not done:
            raise InputError(f"{left_out[0]}; name another method")
        rows[task] = {name: done[name] for name in facts["methods"] if name in done}
        for name, lines in rows[task].items():
            if what["shards"] > 1 or facts["methods"][name]["fitted"]:
                text = "".join(json.dumps(line) + "\n" for line in lines)
                write_file(files.samples_path(folder, task, name), text)

    results: dict[str, dict[str, Any]] = {}
    for task, named in rows.items():
        results[task] = {}
        for name, lines in named.items():
            template = what["tasks"][task]["methods"][name]["template"]
            results[task][name] = {"template": template, **measure(lines)}
    content = {"config": what, "results": results, "differences": inside(rows)}
    write_file(folder / "results.json", json.dumps(content, indent=1, allow_nan=False) + "\n")
    return Results(folder, what, rows, content)


def read_what(folder: Path) -> dict[str, Any]:
    """What the run is. The shards must agree on it."""
    paths = files.run_files(folder)
    if not paths:
        raise InputError(f"{folder}: holds no run; give a folder of minise eval")
    first, *others = paths
    what = json.loads(first.read_bytes())
    for path in others:
        differs = files.difference_of(json.loads(path.read_bytes()), what)
        if differs:
            raise InputError(f"{path}: is no part of the run in {first.name}: {differs}; move it")
    write_file(folder / "run.json", json.dumps(what, indent=1) + "\n")
    return dict(what)


def read_task(
    folder: Path, task: str, facts: dict[str, Any], shards: int
) -> tuple[Named, list[str]]:
    """The answers of the methods that asked the model, and why some are left out."""
    done: Named = {}
    left_out = []
    for name, method in facts["methods"].items():
        if method["fitted"]:
            continue
        paths = [files.samples_path(folder, task, name, (i, shards)) for i in range(shards)]
        marks = [path.with_suffix(files.LEFT_OUT) for path in paths]
        reasons = [mark.read_text() for mark in marks if mark.exists()]
        if reasons:
            left_out.append(reasons[0])
        else:
            done[name] = read_shards(paths, facts)
    return done, left_out


def read_shards(paths: Sequence[Path], facts: dict[str, Any]) -> list[Row]:
    """The answers of one method to one task, in the order of the questions, which were dealt by
    striding."""
    rows: list[Row] = [{}] * facts["questions"]
    n = len(paths)
    for i, path in enumerate(paths):
        part = read_rows(path)
        wanted = len(rows[i::n])
        if len(part) != wanted:
            shard = f" --shard {i}/{n}" if n > 1 else ""
            lack = f"{len(part)} of {wanted} answers"
            raise InputError(f"{path}: has {lack}; finish it by the same minise eval{shard}")
        rows[i::n] = part
    if hash_of([key_of(row) for row in rows]) != facts["hash"]:
        reason = "has answers to other questions than run.json names; ask them in another folder"
        raise InputError(f"{paths[0]}: {reason}")
    return rows


def fit(done: Named, task: str, facts: dict[str, Any]) -> list[str]:
    """Add the answers of the fitted methods, those that need one last; why some are left out."""
    methods: dict[str, Fitted] = {}
    for name, one in facts["methods"].items():
        if one["fitted"]:
            _, method = make_method(one["text"], facts["options"])
            assert isinstance(method, Fitted)
            methods[name] = method

    def needs_fitted(name: str) -> bool:
        return any(need in methods for need in methods[name].needs)

    left_out = []
    for name in sorted(methods, key=needs_fitted):
        needs = methods[name].needs
        try:
            missing = [need for need in needs if need not in done]
            if missing:
                raise Unsuited(f"it needs {missing[0]}, which is left out")
            done[name] = methods[name].fit({need: done[need] for need in needs})
        except Unsuited as error:
            left_out.append(f"left out: {task}-{name}: {one_line(error)}")
    return left_out


def inside(rows: dict[str, Named]) -> dict[str, list[dict[str, Any]]]:
    """The differences within a run, by their task: each method minus the first."""
    pairs = []
    for task, named in rows.items():
        first, *others = named
        for name in others:
            pairs.append(Pair(task, name, first, named[name], named[first]))
    found: dict[str, list[dict[str, Any]]] = {task: [] for task in rows}
    for one in differences(pairs):
        found[one["task"]].append(one)
    return found


def between(labels: Sequence[str], runs: Sequence[Results]) -> list[dict[str, Any]]:
    """Each later run against the first: methods of one name on the same questions."""
    pairs = []
    for label, run in zip(labels[1:], runs[1:], strict=True):
        for task, named in run.rows.items():
            of_first = runs[0].rows.get(task, {})
            for name, rows in named.items():
                a, b = f"{label}: {name}", f"{labels[0]}: {name}"
                pairs.append(Pair(task, a, b, rows, of_first.get(name, [])))
    return differences(pairs)


def differences(pairs: Sequence[Pair]) -> list[dict[str, Any]]:
    """Those of pairs that share questions, with p values corrected over all of them."""
    found = []
    for pair in pairs:
        numbers = difference(pair.rows_a, pair.rows_b)
        if numbers is not None:
            found.append({"task": pair.task, "a": pair.a, "b": pair.b, **numbers})
    corrected = holm([one["mcnemar_p"] for one in found])
    for one, p in zip(found, corrected, strict=True):
        one["holm_p"] = p
    return found
