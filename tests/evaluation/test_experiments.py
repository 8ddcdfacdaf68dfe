"""The experiments: every row of the paper's list is there, and runs what the paper ran."""

from __future__ import annotations

from minise.evaluation.experiments import EXPERIMENTS
from minise.evaluation.figures import FIGURES
from minise.evaluation.tables import TABLES
from minise.methods.fitted import Fitted
from minise.methods.registry import make_method

NAMES = "choices main scale ablation sensitivity seeds confidence efficiency quantized reasoning"


def test_every_experiment_of_the_paper_is_there() -> None:
    assert EXPERIMENTS.keys() == {*NAMES.split(), "orders", "many-choices"}


def test_names_in_the_data_exist() -> None:
    for one in EXPERIMENTS.values():
        assert set(one.tables) <= TABLES.keys()
        assert set(one.figures) <= FIGURES.keys()
        methods = {v.name: make_method(v.text, {})[1] for v in one.variants}
        assert len(methods) == len(one.variants)
        for method in methods.values():
            if isinstance(method, Fitted):
                assert set(method.needs) <= methods.keys()


def test_what_the_paper_fixes() -> None:
    assert EXPERIMENTS["choices"].cut_to == (2, 4, 6, 8)
    assert EXPERIMENTS["main"].tasks == ("qasc", "truthfulqa", "mmlu_pro_biology")
    assert EXPERIMENTS["seeds"].seeds == (0, 1, 2, 3, 4)
    assert EXPERIMENTS["seeds"].question_seed == EXPERIMENTS["orders"].question_seed == 0
    assert {one.engine for one in EXPERIMENTS["efficiency"].variants} >= {"separate", "dense"}
    assert EXPERIMENTS["efficiency"].peak
    assert all(
        one.variants[0].name == "standard"
        for name, one in EXPERIMENTS.items()
        if name not in ("sensitivity", "efficiency", "orders")
    )


def test_sensitivity_runs_each_group_size_once() -> None:
    variants = EXPERIMENTS["sensitivity"].variants
    asking = [one for one in variants if "first-trials" not in one.text]
    assert len(variants) == 12
    assert [one.name for one in asking] == ["m3-n80", "m4-n80", "m5-n80"]
