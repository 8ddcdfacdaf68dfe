"""The paper's experiments as data: variants, data sets, numbers of choices, seeds, and what a
report shows of them. Imports neither torch nor numpy: `minise --help` lists the experiments."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from minise.evaluation.extras import reasoning_texts, single_questions
from minise.methods.registry import Variant
from minise.methods.sample import Sample

if TYPE_CHECKING:  # at run time it would import the readers of data sets, which the help waits for
    from minise.data.tasks import Task

Variants = Callable[["Task"], list[Variant]]
Extra = Callable[[dict[str, list[Sample]]], Any]  # of a task's samples by variant; JSON


@dataclass(frozen=True)
class Experiment:
    """What an experiment runs, unless options say otherwise, and what its report shows.

    `variants` gives the variants for a task. No option overrides their settings; m and N, where
    left open, are the task's. `cut_to`: the numbers of choices to which questions are cut, () for
    none. `question_seed`: draws the questions for all seeds; None: each seed draws its own.
    `questions`: how many the miniature makes. `none_of_the_above`: each task also with that
    text as a wrong choice, and as the right one. `extra`: what else is measured, by its key in
    results.json. `tables`, `figures`: names in report/tables.py and report/figures.py, in the order
    of the report; the defaults are also those of a run of no experiment.
    """

    about: str
    variants: Variants
    datasets: tuple[str, ...] = ("qasc",)
    cut_to: tuple[int, ...] = ()
    seeds: tuple[int, ...] = (0,)
    question_seed: int | None = None
    questions: int = 1000
    none_of_the_above: bool = False
    extra: dict[str, Extra] = field(default_factory=dict)
    tables: tuple[str, ...] = ("all-metrics", "differences")
    figures: tuple[str, ...] = ("accuracy", "confidence", "reliability")


def _methods(*names: str) -> Variants:
    return lambda task: [Variant(name, name) for name in names]


def _engines(task: Task) -> list[Variant]:
    engines = {"multi-pass": "separate", "single-pass": "dense", "tree": "tree"}
    return [Variant(name, "self-ensemble", engine=engines[name]) for name in engines]


def _sensitivity(task: Task) -> list[Variant]:
    """Group sizes m by trials N. The first N of 80 random trials are those of a run with N trials,
    so each m runs once. The miniature gets more of both and the exact expectation, except for
    m = 5: 8 choices have 7,056 ordered groups of 5 and 3, which would take most of the time."""
    small = task.dataset == "miniature"
    variants = []
    for m in (2, 3, 4, 5) if small else (3, 4, 5):
        most = Variant(f"m{m}-n80", "self-ensemble", {"group_size": m, "trials": 80})
        for n in (1, 5, 10, 20, 40) if small else (10, 20, 40):
            settings = {"group_size": m, "trials": n, "of": most.name}
            variants.append(Variant(f"m{m}-n{n}", "first-trials", settings))
        variants.append(most)
        if small and m < 5:
            settings = {"group_size": m, "trials": 0, "grouping": "exact"}
            variants.append(Variant(f"m{m}-exact", "self-ensemble", settings))
    return variants


_BOTH = _methods("standard", "self-ensemble")
_ABLATED = _methods("standard", "without-mask", "without-positions", "self-ensemble")
_FITTED = ("vector-scaling", "dirichlet")
_ALL = _methods("standard", *_FITTED, "self-ensemble", "cyclic", "cloze", "presence")
_WRITING = _methods("standard", "cot", "reasoning", "self-ensemble")
_OTHERS = _methods(
    *("self-ensemble", "standard", "cyclic", "permutations", "pride", "contextual-calibration"),
    *("cloze", "presence"),
)
_DATASETS = ("qasc", "truthfulqa", "mmlu_pro_biology")

NO_EXPERIMENT = Experiment("", lambda task: [])
EXPERIMENTS = {
    "choices": Experiment(
        "accuracy against the number of choices",
        _BOTH,
        cut_to=(2, 4, 6, 8),
        extra={"asked": single_questions},
        tables=("accuracy-by-task", "differences"),
        figures=("accuracy-choices", "confidence-choices", "one-question", "reliability"),
    ),
    "main": Experiment(
        "all methods on all data sets",
        _ALL,
        _DATASETS,
        tables=(
            *("accuracy-improvement", "nll-by-task", "ece-by-task", "matched-nll-by-task"),
            *("under-by-task", "over-by-task", "tokens-by-task", "differences"),
        ),
        figures=("accuracy", "radar", "confidence", "reliability"),
    ),
    "scale": Experiment(
        "models of several sizes, one run each",
        _BOTH,
        tables=("accuracy-by-method", "differences"),
        figures=("scaling", "accuracy", "confidence", "reliability"),
    ),
    "ablation": Experiment(
        "without the mask, without positional re-encoding",
        _ABLATED,
        tables=("accuracy-by-method", "differences"),
    ),
    "sensitivity": Experiment(
        "group size against number of trials",
        _sensitivity,
        questions=100,
        tables=("accuracy-by-sizes",),
        figures=("sensitivity",),
    ),
    "seeds": Experiment(
        "five seeds of the groups",
        _BOTH,
        seeds=(0, 1, 2, 3, 4),
        question_seed=0,
        tables=("accuracy-over-seeds", "differences"),
    ),
    "confidence": Experiment(
        "under- and over-confidence, confidence curves",
        _BOTH,
        _DATASETS,
        tables=("under-and-over", "differences"),
    ),
    "efficiency": Experiment(
        "multi-pass against single-pass: time, memory, decisions",
        _engines,
        tables=("engines",),
        figures=("efficiency",),
    ),
    "quantized": Experiment(
        "4-bit weights and full precision, one run each",
        _BOTH,
        tables=("accuracy-by-weights", "differences"),
    ),
    "reasoning": Experiment(
        "chain of thought and reasoning models",
        _WRITING,
        extra={"reasoning": reasoning_texts},
        tables=("accuracy-by-task", "reasoning-texts", "tokens-by-task", "differences"),
    ),
    "null-option": Experiment(  # not in the paper
        'other methods where "None of the above" is a choice, wrong or right',
        _OTHERS,
        ("miniature",),
        cut_to=(8,),
        questions=100,
        none_of_the_above=True,
    ),
}


def find_experiment(name: str | None) -> Experiment:
    """The experiment of this name; NO_EXPERIMENT, with the default tables and figures, where there
    is none."""
    return NO_EXPERIMENT if name is None else EXPERIMENTS.get(name, NO_EXPERIMENT)
