"""The lines of a run's folder, joined where they are of shards, and all numbers made from them."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from minise.errors import InputError, Unsuited, one_line
from minise.evaluation import run as files
from minise.evaluation.metrics import difference, holm, measure
from minise.files import write_file
from minise.methods.fitted import Row
from minise.methods.registry import make_method

Named = dict[str, list[Row]]  # lines by their method
Pair = tuple[dict[str, str], list[Row], list[Row]]  # the names of a difference, and its two sides


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
    left_out = what["left_out"] = list[str]()
    rows: dict[str, Named] = {}
    for task, facts in what["tasks"].items():
        done: Named = {}
        for name in [name for name, one in facts["methods"].items() if not one["fitted"]]:
            n = what["shards"]
            paths = [files.samples_path(folder, task, name, (i, n)) for i in range(n)]
            marks = [path.with_suffix(files.LEFT_OUT) for path in paths]
            reasons = [mark.read_text() for mark in marks if mark.exists()]
            if not reasons:
                done[name] = read_shards(paths, facts)
            left_out += reasons[:1]
        left_out += fit(done, task, facts)
        if not done:
            raise InputError(f"{left_out[0]}; name another method")
        rows[task] = {name: done[name] for name in facts["methods"] if name in done}
        for name, lines in rows[task].items():
            if what["shards"] > 1 or facts["methods"][name]["fitted"]:
                text = "".join(json.dumps(line) + "\n" for line in lines)
                write_file(files.samples_path(folder, task, name), text)
    pairs: list[Pair] = []
    for task, named in rows.items():
        first, *others = named
        for a in others:
            pairs.append(({"task": task, "a": a, "b": first}, named[a], named[first]))
    found = differences(pairs)
    results = {
        task: {
            name: {"template": what["tasks"][task]["methods"][name]["template"], **measure(lines)}
            for name, lines in each.items()
        }
        for task, each in rows.items()
    }
    content = {
        "config": what,
        "results": results,
        "differences": {task: [one for one in found if one["task"] == task] for task in rows},
    }
    write_file(folder / "results.json", json.dumps(content, indent=1, allow_nan=False) + "\n")
    return Results(folder, what, rows, content)


def read_what(folder: Path) -> dict[str, Any]:
    """What the run is. The shards must agree on it."""
    found = [(path, json.loads(path.read_bytes())) for path in files.run_files(folder)]
    if not found:
        raise InputError(f"{folder}: holds no run; give a folder of minise eval")
    first, what = found[0]
    for path, other in found:
        if differs := files.difference_of(other, what):
            raise InputError(f"{path}: is no part of the run in {first.name}: {differs}; move it")
    write_file(folder / "run.json", json.dumps(what, indent=1) + "\n")
    return dict(what)


def read_shards(paths: Sequence[Path], facts: dict[str, Any]) -> list[Row]:
    """The answers of one method to one task, in the order of the questions, which were dealt by
    striding."""
    rows: list[Row] = [{}] * facts["questions"]
    n = len(paths)
    for i, path in enumerate(paths):
        part, wanted = files.read_rows(path), len(rows[i::n])
        if len(part) != wanted:
            shard, lack = f" --shard {i}/{n}" * (n > 1), f"{len(part)} of {wanted} answers"
            raise InputError(f"{path}: has {lack}; finish it by the same minise eval{shard}")
        rows[i::n] = part
    if files.hash_of([[row[key] for key in files.KEYS] for row in rows]) != facts["hash"]:
        reason = "has answers to other questions than run.json names; ask them in another folder"
        raise InputError(f"{paths[0]}: {reason}")
    return rows


def fit(done: Named, task: str, facts: dict[str, Any]) -> list[str]:
    """Add the answers of the fitted methods, those that need one last; why some are left out."""
    fitted = {name: one["text"] for name, one in facts["methods"].items() if one["fitted"]}
    methods: dict[str, Any] = {
        name: make_method(text, facts["options"])[1] for name, text in fitted.items()
    }
    left_out = []
    for name in sorted(methods, key=lambda name: any(n in methods for n in methods[name].needs)):
        try:
            if missing := [need for need in methods[name].needs if need not in done]:
                raise Unsuited(f"it needs {missing[0]}, which is left out")
            done[name] = methods[name].fit({need: done[need] for need in methods[name].needs})
        except Unsuited as error:
            left_out.append(f"left out: {task}-{name}: {one_line(error)}")
    return left_out


def between(labels: Sequence[str], runs: Sequence[Results]) -> list[dict[str, Any]]:
    """Each later run against the first: methods of one name on the same questions."""
    pairs: list[Pair] = []
    for label, run in zip(labels[1:], runs[1:], strict=True):
        for task, named in run.rows.items():
            for name, rows in named.items():
                names = {"task": task, "a": f"{label}: {name}", "b": f"{labels[0]}: {name}"}
                pairs.append((names, rows, runs[0].rows.get(task, {}).get(name, [])))
    return differences(pairs)


def differences(pairs: Sequence[Pair]) -> list[dict[str, Any]]:
    """Those of pairs that share questions, with p values corrected over all of them."""
    found = [{**names, **one} for names, a, b in pairs if (one := difference(a, b))]
    corrected = holm([one["mcnemar_p"] for one in found])
    return [{**one, "holm_p": p} for one, p in zip(found, corrected, strict=True)]
