"""Whatever the device, the methods give one answer. The CPU's part runs everywhere.

On a machine with a GPU: python -m pytest -rs -k cuda
"""

import pytest
import torch

import minise
from minise import InputError, LocalModel, Question, generate, load
from minise.lab.writing import generation
from minise.verify.comparison import PACKED
from minise.verify.verify import verify

NO_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
MODEL = "weights/tiny-llama"
PERU = Question("What is the capital of Peru?", ["Quito", "Lima", "Oslo", "Cairo", "Riyadh"])
# How far a probability may be from that of float32 on the CPU.
NEAR = {torch.float32: 1e-4, torch.bfloat16: 0.1, torch.float16: 0.02}


@pytest.fixture(scope="module", params=["cpu", pytest.param("cuda", marks=NO_GPU)])
def device(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(scope="module", params=NEAR, ids=str)
def lm(request: pytest.FixtureRequest, device: str) -> LocalModel:
    return load(MODEL, dtype=request.param, device=device)


def test_every_engine_answers_as_separate_runs_on_the_cpu(lm: LocalModel) -> None:
    reference = load(MODEL, dtype=torch.float32, device="cpu")
    expected = minise.self_ensemble(reference, PERU, 4, 6, engine="separate")
    for engine in (*PACKED, "separate"):
        answer = minise.self_ensemble(lm, PERU, 4, 6, engine=engine)
        assert answer.prediction == expected.prediction
        far = (answer.normalized - expected.normalized).abs().max()
        assert far <= NEAR[lm.decoder.dtype], engine


def test_packed_runs_are_verified_against_separate_ones(lm: LocalModel) -> None:
    _, prompts = minise.SelfEnsemble(4, 2).prompts(lm, PERU)
    report = verify(lm, prompts)
    assert report.passed, report.failure


def test_equal_bits_are_promised_on_a_cpu_only(device: str) -> None:
    if device == "cpu":
        load(MODEL, device=device, equal_bits=True)
        return
    with pytest.raises(InputError, match="equal bits are known of a CPU only"):
        load(MODEL, device=device, equal_bits=True)


def test_the_same_text_is_written(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generation, "stop_tokens", lambda lm: [])
    reference, lm = (load(MODEL, dtype=torch.float64, device=where) for where in ("cpu", device))
    prompts = ["What is the capital of Peru?", "What is the capital"]
    texts = [generate(model, prompts, 8) for model in (reference, lm)]
    assert [one.tokens for one in texts[0]] == [one.tokens for one in texts[1]]
