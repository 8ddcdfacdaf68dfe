"""minise/definition.py says what minise computes: it stands alone, agrees with another library's
frozen numbers, and the core, which is made in another way, agrees with it."""

import ast
import json
import re
import runpy
import sys
from pathlib import Path
from statistics import mean

import pytest
import torch
from safetensors.torch import load_file

import minise
from minise import definition
from minise.commands.cli import main
from minise.commands.options import QUESTION
from minise.method import SelfEnsemble
from minise.question import Question
from tests.reference.claims.test_goldens import CASES, GOLDENS

ROOT = Path(__file__).parents[3]
WEIGHTS = ROOT / "weights"
SHIPPED = sorted(path.parent.name for path in WEIGHTS.glob("*/config.json"))
OTHERS = [
    Question("What is the capital of Kenya?", ["Accra", "Nairobi", "Lagos", "Cairo", "Oslo"]),
    Question("Which is a bird? ", ["wren", " a trout ", "Ωak", "the red ant", "(A) x", "quartz"]),
]


def test_it_imports_nothing_of_minise_and_no_more_than_it_says() -> None:
    source = (ROOT / "minise" / "definition.py").read_text("utf-8")
    imported = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            imported |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported.add(str(node.module).partition(".")[0])
    others = imported - sys.stdlib_module_names
    assert others == {"torch", "safetensors", "tokenizers"}


@pytest.mark.parametrize("run", ["causal", "packed"])
@pytest.mark.parametrize("case", CASES)
def test_its_logits_are_the_frozen_ones_of_another_library(case: str, run: str) -> None:
    config = json.loads((GOLDENS / case / "config.json").read_text("utf-8"))
    weights = load_file(GOLDENS / case / "model.safetensors")
    wide = {name: x.double() for name, x in weights.items()}
    golden = load_file(GOLDENS / case / "golden.safetensors")
    given = (golden[f"{run}.{name}"] for name in ("tokens", "positions", "mask"))
    logits = definition.Decoder(config, wide).logits(*given)
    assert (logits - golden[f"{run}.logits"]).abs().max() <= 1e-9


@pytest.mark.parametrize("name", SHIPPED)
def test_the_core_gives_its_scores(name: str) -> None:
    """Group by group: the draws, the prompts, the packed pass, the labels and the mean."""
    folder = str(WEIGHTS / name)
    model = definition.Model(folder)
    lm = minise.load(folder, dtype="float64")
    for question in (QUESTION, *OTHERS):
        choices = list(question.choices)
        key = f"3/{question.id}"
        found = definition.self_ensemble(model, question.text, choices, m=3, N=2, key=key)
        for engine in ("tree", "packed", "separate"):
            answer = minise.self_ensemble(lm, question, 3, trials=2, seed=3, engine=engine)
            for choice, listed in enumerate(found[:-1]):
                assert float(answer.scores[choice]) == pytest.approx(mean(listed), abs=1e-12)
                parts = []
                for group in answer.groups:
                    if choice in group.choices:
                        place = group.choices.index(choice)
                        parts.append(float(group.probabilities[place]))
                assert parts == pytest.approx(listed, abs=1e-12)
            nulls = [group.null for group in answer.groups]
            assert nulls == pytest.approx(found[-1], abs=1e-12)
        [standard] = definition.ask(model, question.text, [choices])
        assert minise.standard(lm, question).scores.tolist() == pytest.approx(
            standard.tolist(), abs=1e-12
        )


@pytest.mark.parametrize("name", SHIPPED)
def test_the_core_packs_the_same_sequence(name: str) -> None:
    model = definition.Model(str(WEIGHTS / name))
    lm = minise.load(WEIGHTS / name)
    for question in (QUESTION, *OTHERS):
        _, prompts = SelfEnsemble(4, 3).prompts(lm, question, seed=1)
        K = len(question.choices)
        groups = definition.draw_groups(K, 4, 3, f"1/{question.id}")
        lists = []
        for group in groups:
            lists.append([*(question.choices[i] for i in group), definition.NULL_OPTION])
        ids = [model.ids(definition.write_prompt(question.text, choices)) for choices in lists]
        assert [prompts.prefix + branch for branch in prompts.branches] == ids
        layout = minise.pack(prompts.prefix, prompts.branches)
        tokens, positions, mask, ends = definition.pack(prompts.prefix, prompts.branches)
        for ours, defined in (
            (layout.tokens, tokens),
            (layout.positions, positions),
            (layout.mask, mask),
            (layout.ends, ends),
        ):
            assert torch.equal(ours, defined)


def test_it_runs_and_prints_the_numbers_that_ask_prints(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(ROOT / "minise" / "definition.py")
    monkeypatch.setattr(sys, "argv", [path, str(WEIGHTS / "tiny-llama")])
    runpy.run_path(path, run_name="__main__")
    printed = capsys.readouterr().out
    assert main(["ask", "--dtype", "float64"]) == 0
    asked = capsys.readouterr().out
    for choice in QUESTION.choices:
        [defined] = re.findall(f"^{choice} .*", printed, re.MULTILINE)
        standard, score, error = re.findall(r"[\d.]+", defined)
        [shown] = re.findall(f"^  {choice} .*", asked, re.MULTILINE)
        numbers = re.findall(r"[\d.]+", shown)
        assert numbers == [standard, score, error]
