"""List the tasks, methods and experiments that minise eval takes, a line for each.

example: minise tasks | less
"""

from dataclasses import dataclass

from minise.evaluation.experiments import EXPERIMENTS
from minise.methods.registry import METHODS


@dataclass(frozen=True)
class Options:
    pass


def run(options: Options) -> int:
    from minise.data.datasets import DATASETS
    from minise.data.miniature import WORLDS

    sizes = {name: f"m={one.group_size}, N={one.trials}" for name, one in DATASETS.items()}
    made = dict.fromkeys(WORLDS, "questions about the world that the shipped models know")
    lists = {
        "tasks": {**sizes, **made, "FILE": "your own: .jsonl, .json, .csv or .parquet"},
        "methods": {name: about for name, (_, about) in METHODS.items()},
        "experiments": {name: one.about for name, one in EXPERIMENTS.items()},
    }
    for kind, named in lists.items():
        print(f"{kind}:", *(f"  {name:<24}{about}" for name, about in named.items()), sep="\n")
    return 0
