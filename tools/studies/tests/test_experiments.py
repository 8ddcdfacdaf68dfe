"""What our studies ran: the arms list the same choices, and a run reads as it was asked."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from minise import LocalModel, Method, Question
from minise.lab.evaluation.results import read_run
from minise.lab.methods.registry import make_method
from tests.lab.evaluation.test_experiments import check_names
from tools.studies.experiments import STUDIES

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[3]


def test_names_in_the_data_exist() -> None:
    for one in STUDIES.values():
        check_names(one)


@pytest.mark.parametrize("name", STUDIES)
def test_its_command_asks_the_methods_and_reports(name: str, tmp_path: Path) -> None:
    """On a task that is not fetched. The shipped model has no chat template."""
    words = f"eval --experiment {name} --task miniature-many --limit 1 --trials 1 --cut-to 20"
    command = [sys.executable, "-m", "tools.studies", *words.split(), "-o", str(tmp_path / "run")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    about = json.loads((tmp_path / "run" / "run.json").read_text("utf-8"))
    assert about["experiment"] == name
    [by_method] = read_run(tmp_path / "run").answers.values()
    asked = {variant.name for variant in STUDIES[name].variants}
    assert by_method.keys() == {one for one in asked if not one.endswith("-chat")}


def test_the_arms_of_splitting_list_each_choice_equally_often_but_for_presence(
    lm: LocalModel,
) -> None:
    question = Question("Which?", [f"choice {i}" for i in range(20)], "q", 3)
    options = {"trials": 5, "orders": 5}
    for variant in STUDIES["splitting"].variants:
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
    for variant in STUDIES["verdict"].variants:
        method = make_method(variant.text, {"trials": 5, "orders": 5})[1]
        assert isinstance(method, Method)
        plan, _ = method.prompts(lm, question)
        orders[variant.name] = [choice for group in plan.groups.flat for choice in group]
    assert orders["full-list-null"] == orders["short-lists"]
    assert len(orders["short-lists"]) == 5 * 20
