"""The paper's experiments as data: what each runs and what a report shows of it. Imports no torch,
so the help can list them."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Variant:
    """A column of a report: its name, the method as `--method` writes it, and the engine; None is
    the one of the model, as `--engine` names it."""

    name: str
    text: str
    engine: str | None = None


@dataclass(frozen=True)
class Experiment:
    """What an experiment runs on each model, unless options say otherwise, and what a report shows.
    m and N, where a variant leaves them open, are the paper's for the data set.

    tables, figures: names in tables.py and figures.py; picks and differences are always shown.
    cut_to: numbers of choices. question_seed: draws the questions for all seeds; None: each seed
    draws its own. peak: measure memory, too. skip: leave out so many of the first questions of a
    data set. keep_groups: keep each prompt's probabilities.
    """

    variants: tuple[Variant, ...]
    tasks: tuple[str, ...] = ("qasc",)
    tables: tuple[str, ...] = ("accuracy", "all")
    figures: tuple[str, ...] = ("accuracy", "confidence")
    cut_to: tuple[int, ...] = ()
    seeds: tuple[int, ...] = (0,)
    question_seed: int | None = None
    peak: bool = False
    skip: Mapping[str, int] = field(default_factory=dict)
    keep_groups: bool = False


def named(texts: str) -> tuple[Variant, ...]:
    """Variants, each written as TEXT, or as NAME:TEXT."""
    variants = []
    for one in texts.split():
        name, _, text = one.rpartition(":")
        variants.append(Variant(name or text, text))
    return tuple(variants)


def sizes() -> tuple[Variant, ...]:
    """Group sizes m by trials N. The first N of 80 random trials are those of a run with N trials,
    so each m runs once."""
    variants: list[Variant] = []
    for m in (3, 4, 5):
        for n in (10, 20, 40):
            variants.append(Variant(f"m{m}-n{n}", f"first-trials(of=m{m}-n80,trials={n})"))
        variants.append(Variant(f"m{m}-n80", f"self-ensemble(group_size={m},trials=80)"))
    return tuple(variants)


ABLATIONS = (
    Variant("standard", "standard"),
    Variant("without-mask", "self-ensemble", "without-mask"),
    Variant("without-positions", "self-ensemble", "without-positions"),
    Variant("self-ensemble", "self-ensemble"),
)
BOTH = named("standard self-ensemble")
MAIN = named("standard vector-scaling dirichlet self-ensemble cyclic cloze presence")
THOUGHTS = named("standard cot reasoning self-ensemble")
LAYOUTS = (
    Variant("multi-pass", "self-ensemble", "separate"),
    Variant("single-pass", "self-ensemble", "packed"),
    Variant("tree", "self-ensemble", "tree"),
)
DATA_SETS = ("qasc", "truthfulqa", "mmlu_pro_biology")
BY_K = ("choices", "confidence-choices")
NO_EXPERIMENT = Experiment((), tables=("all",))
EXPERIMENTS = {
    "choices": Experiment(BOTH, figures=BY_K, cut_to=(2, 4, 6, 8)),
    "main": Experiment(MAIN, DATA_SETS),
    "scale": Experiment(BOTH),
    "ablation": Experiment(ABLATIONS),
    "sensitivity": Experiment(sizes(), tables=("sizes",), figures=("sensitivity",)),
    "seeds": Experiment(BOTH, tables=("seeds",), seeds=(0, 1, 2, 3, 4), question_seed=0),
    "efficiency": Experiment(
        LAYOUTS,
        tables=("costs",),
        figures=(),
        peak=True,
    ),
    "quantized": Experiment(BOTH, tables=("weights", "all")),
    "reasoning": Experiment(THOUGHTS),
}
