"""The settings of the experiments are fixed: those behind the numbers of README and paper."""

from __future__ import annotations

import pytest

from minise.data.tasks import Task
from minise.evaluation.experiments import EXPERIMENTS
from minise.evaluation.extras import reasoning_texts, single_questions
from minise.methods.build import build, complete
from minise.methods.registry import Variant

ALL = [
    *("standard", "vector-scaling", "dirichlet", "self-ensemble", "cyclic", "cloze", "presence"),
]
SETS = ("qasc", "truthfulqa", "mmlu_pro_biology")
OTHERS = [
    *("self-ensemble", "standard", "cyclic", "permutations", "pride", "contextual-calibration"),
    *("cloze", "presence"),
]
# Data sets, numbers of choices, seeds, questions of the miniature, variants.
PLANNED = {
    "choices": (SETS[:1], (2, 4, 6, 8), (0,), 1000, ["standard", "self-ensemble"]),
    "main": (SETS, (), (0,), 1000, ALL),
    "scale": (SETS[:1], (), (0,), 1000, ["standard", "self-ensemble"]),
    "ablation": (
        *(SETS[:1], (), (0,), 1000),
        ["standard", "without-mask", "without-positions", "self-ensemble"],
    ),
    "seeds": (SETS[:1], (), (0, 1, 2, 3, 4), 1000, ["standard", "self-ensemble"]),
    "confidence": (SETS, (), (0,), 1000, ["standard", "self-ensemble"]),
    "efficiency": (SETS[:1], (), (0,), 1000, ["multi-pass", "single-pass", "tree"]),
    "quantized": (SETS[:1], (), (0,), 1000, ["standard", "self-ensemble"]),
    "reasoning": (
        *(SETS[:1], (), (0,), 1000),
        ["standard", "cot", "reasoning", "self-ensemble"],
    ),
    "null-option": (("miniature",), (8,), (0,), 100, OTHERS),
}


@pytest.mark.parametrize("name", PLANNED)
def test_the_experiments_never_change(name: str) -> None:
    one = EXPERIMENTS[name]
    variants = one.variants(Task("x", "qasc", [], {}))
    plan = (one.datasets, one.cut_to, one.seeds, one.questions, [v.name for v in variants])
    assert plan == PLANNED[name]
    extra = {
        "choices": {"asked": single_questions},
        "reasoning": {"reasoning": reasoning_texts},
    }
    assert one.none_of_the_above == (name == "null-option")
    assert one.question_seed == (0 if name == "seeds" else None)
    assert one.extra == extra.get(name, {})
    if name == "efficiency":
        assert [v.engine for v in variants] == ["separate", "dense", "tree"]
        assert {v.method for v in variants} == {"self-ensemble"}
    else:
        assert [v.method for v in variants] == [v.name for v in variants]


@pytest.mark.parametrize(
    ("dataset", "sizes", "trials"),
    [("qasc", (3, 4, 5), (10, 20, 40, 80)), ("miniature", (2, 3, 4, 5), (1, 5, 10, 20, 40, 80))],
)
def test_sensitivity_is_a_grid(
    dataset: str, sizes: tuple[int, ...], trials: tuple[int, ...]
) -> None:
    variants = EXPERIMENTS["sensitivity"].variants(Task("x", dataset, [], {}))
    sampled = {v.name: v.settings for v in variants if "exact" not in v.name}
    assert {name: (s["group_size"], s["trials"]) for name, s in sampled.items()} == {
        f"m{m}-n{n}": (m, n) for m in sizes for n in trials
    }
    exact = {v.name: v.settings for v in variants if v.name not in sampled}
    assert exact == {
        f"m{m}-exact": {"group_size": m, "trials": 0, "grouping": "exact"}
        for m in sizes[:-1]
        if dataset == "miniature"
    }
    assert EXPERIMENTS["sensitivity"].questions == 100


def test_options_that_an_experiment_leaves_open_are_the_papers() -> None:
    variant = complete(Variant("x", "first-trials", {"of": "most"}), {})
    assert variant.settings == {"of": "most", "group_size": 4, "trials": 20}
    assert build(variant).name == variant.method


def test_each_experiment_describes_itself_after_its_name() -> None:
    for one in EXPERIMENTS.values():
        assert 20 < len(one.about) < 80
        assert not one.about[0].isupper()
