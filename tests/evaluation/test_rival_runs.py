"""The rivals in a run: what is left out with a message, and what each costs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from minise.data.tasks import Task
from minise.evaluation.experiments import EXPERIMENTS
from minise.evaluation.samples import read_samples
from minise.methods.build import make_variants
from minise.methods.registry import METHODS
from tests.support.commands import assert_one_line, run
from tests.support.rows import write

for module in ("scipy", "sklearn", "matplotlib", "filelock"):
    pytest.importorskip(module)
pytestmark = pytest.mark.usefixtures("undrawn")


def test_methods_run_with_the_methods_that_they_need() -> None:
    """Self-Ensemble first, because many methods are compared with the first alone; every method
    that asks no model after those that it needs."""
    for name in ("rivals", "null-option"):
        variants = EXPERIMENTS[name].variants(Task("x", "miniature", [], {}))
        names = [variant.name for variant in variants]
        assert names == [variant.method for variant in variants]
        assert names[0] == "self-ensemble"
        assert names.index("pride") > max(names.index("standard"), names.index("cyclic"))
        assert variants[-1].settings == {"matched": True}
    new = [name for name, (where, _) in METHODS.items() if ".priors:" in where]
    new += [name for name, (where, _) in METHODS.items() if ".tournaments:" in where]
    assert {*new, "set-based", "permutations"} < {*names}
    names = [one.name for one in make_variants(["pride(share=0.2)"], {}, "tree")]
    assert names == ["standard", "cyclic", "pride(share=0.2)"]


@pytest.fixture
def evaluate(capsys: Any, llama_folder: Path, tmp_path: Path) -> Any:
    def run_it(K: int, *options: object) -> tuple[int, str, str]:
        rows = [
            {
                "id": f"q{i}",
                "question": f"Which {i}?",
                "choices": [f"choice {x}" for x in range(K)],
                "answer": i % K,
            }
            for i in range(12)
        ]
        data = write(tmp_path / "mine.jsonl", rows)
        fixed = ("--model", llama_folder, "--task", data, "--output-path", tmp_path / "run")
        return run(capsys, "eval", *fixed, "--group-size", 2, "--trials", 2, *options)

    return run_it


def test_methods_that_cannot_label_so_many_choices_are_left_out_in_one_line(
    evaluate: Any, tmp_path: Path, llama_folder: Path
) -> None:
    status, _, err = evaluate(30, "--experiment", "rivals", "--cut-to", 30, "--limit", 2)
    assert status == 0
    refused = "standard, cyclic, cyclic-matched, permutations, pride, contextual-calibration, "
    refused += "batch-calibration, domain-calibration, elimination, permutation-self-consistency"
    why = "(30 choices in one prompt, but only 26 labels (A-Z); use smaller groups)"
    silent = f"recall ({llama_folder}: names no stop token; add eos_token_id to its "
    assert err == (
        f"minise: mine-k30: left out: {refused} {why}\n"
        f"minise: mine-k30: left out: {silent}generation_config.json)\n"
    )
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    assert list(results["results"]["mine-k30"]) == [
        *("self-ensemble", "knockout", "set-based", "rotor", "pine", "cloze", "presence", "league")
    ]
    assert {d["b"] for d in results["differences"]["mine-k30"]} >= {"self-ensemble"}


def test_methods_that_cannot_label_so_many_choices_are_refused_if_named(evaluate: Any) -> None:
    done = evaluate(30, "--method", "elimination")
    assert_one_line(*done, ["mine: elimination: 30 choices in one prompt, but only 26 labels"])


def test_samples_of_each_rival_have_the_tokens_that_it_costs(evaluate: Any, tmp_path: Path) -> None:
    named = "pride(share=0.25),batch-calibration,contextual-calibration,elimination,knockout"
    assert evaluate(4, "--method", named, "--keep-groups")[0] == 0
    samples_of = {
        path.stem.removeprefix("samples-mine-"): read_samples(path)
        for path in (tmp_path / "run").glob("samples-*.jsonl")
    }
    tokens = {name: [sample.tokens for sample in samples] for name, samples in samples_of.items()}
    assert tokens["batch-calibration"] == tokens["standard"]
    rotated = [
        count == cyclic
        for count, cyclic in zip(tokens["pride(share=0.25)"], tokens["cyclic"], strict=True)
    ]
    assert sum(rotated) == 3
    for count, alone, is_rotated in zip(
        tokens["pride(share=0.25)"], tokens["standard"], rotated, strict=True
    ):
        assert is_rotated or count == alone
    alone = tokens["standard"]
    assert all(
        count > one for count, one in zip(tokens["contextual-calibration"], alone, strict=True)
    )
    again = [count > one for count, one in zip(tokens["elimination"], alone, strict=True)]
    assert any(again)
    assert again == [len(sample.groups or ()) == 2 for sample in samples_of["elimination"]]
    last = [sample.groups[-1]["tokens"] for sample in samples_of["elimination"] if sample.groups]
    assert last == tokens["elimination"]


def test_an_invalid_setting_of_a_method_is_one_line(evaluate: Any) -> None:
    for named, message in {
        "knockout(match=1)": "match=1 is below 2",
        "elimination(rounds=0)": "rounds=0 is below 1",
        "domain-calibration(texts=0)": "texts=0 is below 1",
        "permutations(count=0)": "number of trials 0 is below 1",
        "league(matched=7)": "matched=7 is wrong; give true or false",
        "pride(share=much)": 'share="much" is wrong; give a number',
    }.items():
        assert_one_line(*evaluate(4, "--method", named), [message])
