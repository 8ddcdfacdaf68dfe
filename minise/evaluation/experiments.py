"""The paper's experiments as presets: methods, tasks, numbers of choices, seeds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from minise.evaluation.methods import Method

Sizes = tuple[int, int]  # m and N


@dataclass(frozen=True)
class Experiment:
    """`methods` gives a task's methods from its name and its (m, N). `questions`: how many of the
    miniature it takes unless told."""

    about: str
    methods: Callable[[str, Sizes], list[Method]]
    tasks: tuple[str, ...] = ("qasc",)
    num_choices: tuple[int, ...] = ()
    seeds: tuple[int, ...] = (0,)
    questions: int = 1000


def plain(kinds: Sequence[str]) -> Callable[[str, Sizes], list[Method]]:
    """Methods by their kinds, at the task's (m, N)."""
    return lambda task, sizes: [Method(kind, kind, *sizes) for kind in kinds]


def _sensitivity(task: str, sizes: Sizes) -> list[Method]:
    """The paper's table; on the miniature more of both, and the exact expectation, but for m = 5,
    whose 7,056 ordered groups of 8 choices would take most of the time."""
    small = task.startswith("miniature")
    methods = []
    for m in (2, 3, 4, 5) if small else (3, 4, 5):
        for n in (1, 5, 10, 20, 40, 80) if small else (10, 20, 40, 80):
            methods.append(Method(f"m{m}-n{n}", "self-ensemble", m, n, share=f"m{m}"))
        if small and m < 5:
            exact = Method(f"m{m}-exact", "self-ensemble", m, 0, grouping="exact", share=f"m{m}")
            methods.append(exact)
    return methods


def _efficiency(task: str, sizes: Sizes) -> list[Method]:
    engines = {"multi-pass": "separate", "single-pass": "dense", "tree": "tree"}
    return [Method(name, "self-ensemble", *sizes, engine) for name, engine in engines.items()]


EXPERIMENTS = {
    "choices": Experiment(
        "accuracy against the number of choices",
        plain(("standard", "self-ensemble")),
        num_choices=(2, 4, 6, 8),
    ),
    "main": Experiment(
        "all methods on all data sets",
        plain(
            (
                "standard",
                "vector-scaling",
                "dirichlet",
                "self-ensemble",
                "cyclic",
                "cyclic-matched",
            )
        ),
        tasks=("qasc", "truthfulqa", "mmlu_pro_biology"),
    ),
    "scale": Experiment(
        "models of several sizes, one run each", plain(("standard", "self-ensemble"))
    ),
    "ablation": Experiment(
        "without the mask, without positional re-encoding",
        plain(("standard", "without-mask", "without-positions", "self-ensemble")),
    ),
    "sensitivity": Experiment("group size against number of trials", _sensitivity, questions=100),
    "seeds": Experiment(
        "five seeds of the groups", plain(("standard", "self-ensemble")), seeds=(0, 1, 2, 3, 4)
    ),
    "confidence": Experiment(
        "under- and over-confidence, confidence curves", plain(("standard", "self-ensemble"))
    ),
    "efficiency": Experiment(
        "multi-pass against single-pass: time, memory, decisions", _efficiency
    ),
    # Not the paper's, and not a matter of methods: see precision.py.
    "precision": Experiment(
        "random and balanced groupings against the exact expectation", plain(()), questions=100
    ),
}
