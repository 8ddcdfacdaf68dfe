"""Whatever the device, the methods give one answer. The CPU's part runs everywhere.

On a machine with a GPU: python -m pytest -rs -k cuda
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import minise
from minise import LanguageModel, Question, SelfEnsemble, generate, load
from minise.commands.cli import main
from minise.names import ENGINES
from minise.rounds import run_plans

NO_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
MODEL = "weights/tiny-llama"
QUESTIONS = [
    Question("What is the capital of Peru?", ["Quito", "Lima", "Oslo", "Cairo", "Riyadh"], id="a"),
    Question("What is the capital of Japan?", ["Tokyo", "Athens", "Kingston", "Ottawa"], id="b"),
]
# How far a probability may be from that of float32 on the CPU.
NEAR = {torch.float32: 1e-4, torch.bfloat16: 0.1, torch.float16: 0.02}


@pytest.fixture(scope="module", params=["cpu", pytest.param("cuda", marks=NO_GPU)])
def device(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(scope="module", params=NEAR)
def lm(request: pytest.FixtureRequest, device: str) -> LanguageModel:
    return load(MODEL, dtype=request.param, device=device)


@pytest.fixture(scope="module")
def expected() -> list[minise.Answer]:
    reference = load(MODEL, dtype=torch.float32, device="cpu")
    return [minise.self_ensemble(reference, q, engine="separate") for q in QUESTIONS]


@pytest.mark.parametrize("engine", ENGINES)
def test_every_engine_answers_as_separate_runs_on_the_cpu(
    lm: LanguageModel, expected: list[minise.Answer], engine: str
) -> None:
    for question, reference in zip(QUESTIONS, expected, strict=True):
        answer = minise.self_ensemble(lm, question, engine=engine)
        assert answer.prediction == reference.prediction
        far = (answer.probabilities - reference.probabilities).abs().max()
        assert far <= NEAR[lm.decoder.dtype]


def test_questions_that_share_a_pass_answer_as_alone(
    lm: LanguageModel, expected: list[minise.Answer]
) -> None:
    method = SelfEnsemble()
    plans = [method.plan(lm, question, 0) for question in QUESTIONS]
    run = run_plans(lm, method, plans, [0] * len(plans), "tree")
    for (plan, logits), reference in zip(run, expected, strict=True):
        answer = method.answer(plan, logits)
        assert answer.prediction == reference.prediction
        far = (answer.probabilities - reference.probabilities).abs().max()
        assert far <= NEAR[lm.decoder.dtype]


def test_weights_in_4_bits_answer_the_same_by_every_engine(device: str) -> None:
    lm = load(MODEL, dtype=torch.float32, device=device, quantize="nf4-double")
    answers = [minise.self_ensemble(lm, QUESTIONS[0], engine=engine) for engine in ENGINES]
    for answer in answers[1:]:
        assert (answer.probabilities - answers[0].probabilities).abs().max() <= 1e-4


def test_the_same_text_is_written(device: str) -> None:
    reference, lm = (load(MODEL, dtype=torch.float64, device=where) for where in ("cpu", device))
    prompts = ["What is the capital of Peru?", "What is the capital"]
    texts = [generate(model, prompts, 8, stop=()) for model in (reference, lm)]
    assert [one.tokens for one in texts[0]] == [one.tokens for one in texts[1]]


def test_verify_passes_in_float64(device: str, capsys: pytest.CaptureFixture[str]) -> None:
    command: list[Any] = ["verify", "--model", MODEL, "--device", device, "--dtype", "float64"]
    assert main([*command, "--trials", "3", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["passed"]


@pytest.mark.usefixtures("undrawn")
def test_an_evaluation_runs(
    device: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("sklearn")
    options = ("--task", "miniature", "--questions", "6", "--tokens-per-pass", "4000")
    methods = ("--method", "standard,self-ensemble", "--trials", "3")
    where = ("--device", device, "--output-path", str(tmp_path))
    assert main(["eval", *options, *methods, *where]) == 0
    results = json.loads((tmp_path / "results.json").read_text())
    assert results["config"]["device"] == device
    assert results["results"]["miniature"]["self-ensemble"]["n"] == 6
