"""The experiments: every row of the paper's list is there, and runs what the paper ran."""

from minise import LocalModel, Method, Question
from minise.lab.evaluation.experiments import EXPERIMENTS
from minise.lab.evaluation.figures import FIGURES
from minise.lab.evaluation.tables import TABLES
from minise.lab.methods.fitted import Fitted
from minise.lab.methods.registry import make_method

NAMES = "choices main scale ablation sensitivity seeds efficiency quantized reasoning"


def test_every_experiment_of_the_paper_is_there() -> None:
    of_paper = set(NAMES.split())
    ours = {"orders", "many-choices", "splitting", "verdict", "confidence"}
    assert EXPERIMENTS.keys() == of_paper | ours


def test_names_in_the_data_exist() -> None:
    for one in EXPERIMENTS.values():
        assert set(one.tables) <= TABLES.keys()
        assert set(one.figures) <= FIGURES.keys()
        methods = {v.name: make_method(v.text, {})[1] for v in one.variants}
        assert len(methods) == len(one.variants)
        for method in methods.values():
            if isinstance(method, Fitted):
                assert set(method.needs) <= methods.keys()


def test_the_arms_of_splitting_list_each_choice_equally_often_but_for_presence(
    lm: LocalModel,
) -> None:
    question = Question("Which?", [f"choice {i}" for i in range(20)], "q", 3)
    options = {"trials": 5, "orders": 5}
    for variant in EXPERIMENTS["splitting"].variants:
        if variant.name.endswith("-chat"):  # the shipped models have no chat template
            continue
        method = make_method(variant.text, options)[1]
        assert isinstance(method, Method)
        plan, prompts = method.prompts(lm, question)
        listed = [choice for group in plan.groups.flat for choice in group]
        times = 1 if variant.name == "presence-mmlu" else 5
        assert sorted(listed) == sorted([*range(20)] * times)
        texts = [lm.tokenizer.decode([*prompts.prefix, *branch]) for branch in prompts.branches]
        has_null = [text.count("None of the above") for text in texts]
        assert set(has_null) == {int(variant.name != "full-list-mmlu")}
        assert "A. choice" in texts[0]


def test_the_arms_of_the_verdict_list_each_choice_in_the_same_orders(lm: LocalModel) -> None:
    question = Question("Which?", [f"choice {i}" for i in range(20)], "q", 3)
    orders = {}
    for variant in EXPERIMENTS["verdict"].variants:
        method = make_method(variant.text, {"trials": 5, "orders": 5})[1]
        assert isinstance(method, Method)
        plan, _ = method.prompts(lm, question)
        orders[variant.name] = [choice for group in plan.groups.flat for choice in group]
    assert orders["full-list-null"] == orders["short-lists"]
    assert len(orders["short-lists"]) == 5 * 20
