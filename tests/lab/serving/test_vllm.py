"""A real vLLM with a shipped model, beside the same weights here. It runs where `vllm` is found."""

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from minise import LanguageModel, load
from minise.lab.data.tasks import Selection, load_tasks
from minise.method import SelfEnsemble, Standard

FOLDER = Path(__file__).parents[3] / "weights" / "tiny-llama"
START = 400  # seconds that it may take to start

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("vllm") is None, reason="vllm is not installed"),
]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LanguageModel]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = ["vllm", "serve", str(FOLDER), "--host", "127.0.0.1", "--port", str(port)]
    words += ["--dtype", "float32", "--max-model-len", "256", "--enforce-eager"]
    cpu = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    output = tmp_path_factory.mktemp("vllm") / "output.txt"
    with output.open("wb") as file:
        process = subprocess.Popen(
            words,
            env={**os.environ, **cpu, "HF_HUB_OFFLINE": "1"},
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        until = time.monotonic() + START
        while not answers(f"http://127.0.0.1:{port}/health"):
            assert process.poll() is None, output.read_text("utf-8")[-3000:]
            assert time.monotonic() < until, output.read_text("utf-8")[-3000:]
            time.sleep(1)
        yield load(f"server:http://127.0.0.1:{port}", tokenizer=FOLDER)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def answers(url: str) -> bool:
    try:
        return httpx2.get(url, timeout=5).status_code == 200
    except httpx2.RequestError:
        return False


def test_its_probabilities_are_those_of_the_weights_within_rounding(served: LanguageModel) -> None:
    here = load(FOLDER, dtype="float32")
    for question in load_tasks(["miniature"], Selection(limit=5))[0].questions:
        for method in (Standard(), SelfEnsemble(trials=3)):
            _, prompts = method.prompts(here, question)
            for a, b in zip(here.logits(prompts), served.logits(prompts), strict=True):
                gap = (a.labels.softmax(dim=-1) - b.labels.softmax(dim=-1)).abs().max()
                assert gap < 1e-4
