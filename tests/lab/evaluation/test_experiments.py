"""The experiments: every row of the paper's list is there, and runs what the paper ran."""

from minise.lab.evaluation.experiments import EXPERIMENTS, Experiment
from minise.lab.evaluation.figures import FIGURES
from minise.lab.evaluation.tables import TABLES
from minise.lab.methods.fitted import Fitted
from minise.lab.methods.registry import make_method

NAMES = "choices main scale ablation sensitivity seeds efficiency quantized reasoning"


def test_every_experiment_of_the_paper_is_there() -> None:
    assert EXPERIMENTS.keys() == set(NAMES.split())


def test_names_in_the_data_exist() -> None:
    for one in EXPERIMENTS.values():
        check_names(one)


def check_names(one: Experiment) -> None:
    """That an experiment names methods, tables and figures that are there."""
    assert set(one.tables) <= TABLES.keys()
    assert set(one.figures) <= FIGURES.keys()
    methods = {v.name: make_method(v.text, {})[1] for v in one.variants}
    assert len(methods) == len(one.variants)
    for method in methods.values():
        if isinstance(method, Fitted):
            assert set(method.needs) <= methods.keys()
