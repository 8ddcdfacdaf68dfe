"""The experiments: every row of the paper's list is there, and runs what the paper ran."""

from minise.evaluation.experiments import EXPERIMENTS
from minise.evaluation.figures import FIGURES
from minise.evaluation.tables import TABLES
from minise.methods.fitted import Fitted
from minise.methods.registry import make_method

NAMES = "choices main scale ablation sensitivity seeds efficiency quantized reasoning"


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
