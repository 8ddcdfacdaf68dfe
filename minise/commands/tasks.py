"""List the tasks, methods, experiments and models that the other commands take, a line for each."""

from __future__ import annotations

import argparse
import json

from minise.evaluation.experiments import EXPERIMENTS
from minise.methods.registry import METHODS, OFFERED
from minise.names import DEFAULT_MODEL

EXAMPLE = "minise tasks --json"


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")


def run(args: argparse.Namespace) -> int:
    from minise.data.datasets import DATASETS
    from minise.loading.source import shipped_models

    tasks = {}
    for name, data in DATASETS.items():
        part = f"{data.title}, {data.category}" if data.category else data.title
        tasks[name] = (
            f"{part}; {data.trials} trials of groups of {data.group_size}; fetched from the hub"
        )
    about = "questions about the small world that the shipped models know; no download"
    hops = "questions that join two facts of it (for weights/tiny-reasoner); no download"
    many = "the same, with up to 100 choices by --cut-to; no download"
    tasks |= {"miniature": about, "miniature-many": many, "miniature-hops": hops}
    tasks |= {"FILE": "your own questions: .jsonl, .json, .csv or .parquet"}
    own = {"FILE.py:CLASS": "a method of your own (docs/extending.md)"}
    models = {
        name: "the default, in the package" if name == DEFAULT_MODEL else "in the package"
        for name in shipped_models()
    }
    lists = {
        "tasks": tasks,
        "methods": {name: METHODS[name][1] for name in OFFERED} | own,
        "experiments": {name: one.about for name, one in EXPERIMENTS.items()},
        "models": models,
    }
    if args.json:
        print(json.dumps(lists))
        return 0
    where = {"tasks": "--task", "methods": "--method", "experiments": "--experiment"}
    for title, rows in lists.items():
        print(f"{title} (minise eval {where.get(title, '--model')}):")
        for name, text in rows.items():
            print(f"  {name:<20}  {text}")
        print()
    print("`minise ask` takes the methods standard and self-ensemble.")
    return 0
