"""`minise tasks`: the lists."""

from __future__ import annotations

from minise.commands.ask import TITLES as ASK_METHODS
from minise.commands.tasks import TasksRequest
from minise.data.datasets import DATASETS
from minise.evaluation.experiments import EXPERIMENTS
from minise.files import json_text
from minise.loading.names import DEFAULT_MODEL
from minise.loading.source import shipped_models
from minise.methods.registry import METHODS, OFFERED

TITLES = {
    "tasks": "tasks (minise eval --task)",
    "methods": "methods (minise eval --method; those with * also minise ask --method)",
    "experiments": "experiments (minise eval --experiment)",
    "models": "models (minise eval --model)",
}


def run(request: TasksRequest) -> int:
    methods = {name: METHODS[name][1] for name in OFFERED}
    methods["FILE.py:CLASS"] = "a method of your own (docs/extending.md)"
    models = dict.fromkeys(shipped_models(), "in the package")
    if DEFAULT_MODEL in models:
        models[DEFAULT_MODEL] = "the default, in the package"
    lists = {
        "tasks": _tasks(),
        "methods": methods,
        "experiments": {name: experiment.about for name, experiment in EXPERIMENTS.items()},
        "models": models,
    }
    if request.json:
        print(json_text(lists))
        return 0
    for key, title in TITLES.items():
        print(f"{title}:")
        for name, text in lists[key].items():
            mark = "*" if key == "methods" and name in ASK_METHODS else " "
            print(f"{mark:>2}{name:<22}  {text}")
        print()
    return 0


def _tasks() -> dict[str, str]:
    tasks = {}
    for name, data in DATASETS.items():
        part = f"{data.title}, {data.category}" if data.category else data.title
        sizes = f"{data.trials} trials of groups of {data.group_size}"
        tasks[name] = f"{part}; {sizes}; fetched from the hub"
    return {
        **tasks,
        "miniature": "questions about the small world that the shipped models know; no download",
        "miniature-many": "the same, with up to 100 choices by --cut-to; no download",
        "miniature-hops": (
            "questions that join two facts of it (for weights/tiny-reasoner); no download"
        ),
        "FILE": "your own questions: .jsonl, .json, .csv or .parquet",
    }
