"""vLLM's own server with a tiny model, beside the same weights here.

It runs where a program `vllm` is on the PATH or beside this Python: docs/serving.md says how it is
installed for a CPU, in an environment of its own.
"""

import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from multiprocessing.pool import ThreadPool
from pathlib import Path

import pytest

from minise import LanguageModel, Question, load
from minise.data.tasks import Selection, load_tasks
from minise.method import SelfEnsemble, ask
from tests.serving.conftest import QWEN
from tests.support.tiny import write_checkpoint

PLACES = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
VLLM = shutil.which("vllm", path=PLACES)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(VLLM is None, reason="no vllm here; docs/serving.md says how to install it"),
]

START = 300.0  # seconds until it must answer
# Heads as wide as vLLM takes them on a CPU, and the name by which it finds the model.
WIDE = {**QWEN, "hidden_size": 128, "architectures": ["Qwen2ForCausalLM"]}
ASKED = SelfEnsemble(trials=2)


def read(url: str) -> str:
    with urllib.request.urlopen(url, timeout=30) as reply:
        return str(reply.read().decode())


def wait_for(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    limit = time.monotonic() + START
    while True:
        try:
            read(f"{url}/health")
            return
        except OSError:
            said = log.read_text(errors="replace")[-3000:]
        assert process.poll() is None, f"vllm ended with status {process.returncode}: {said}"
        assert time.monotonic() < limit, f"vllm does not answer: {said}"
        time.sleep(0.5)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("vllm"), WIDE)


@pytest.fixture(scope="module")
def url(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server of the weights in float32. Its blocks are short, so that beginnings are kept."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = [str(VLLM), "serve", str(folder), "--host", "127.0.0.1", "--port", str(port)]
    words += ["--dtype", "float32", "--max-model-len", "1024", "--enforce-eager"]
    words += ["--block-size", "32"]
    settings = {
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_NO_USAGE_STATS": "1",
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    log = tmp_path_factory.mktemp("log") / "vllm.txt"
    with log.open("wb") as output:
        process = subprocess.Popen(
            words, env={**os.environ, **settings}, stdout=output, stderr=subprocess.STDOUT
        )
    try:
        wait_for(process, f"http://127.0.0.1:{port}", log)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@pytest.fixture(scope="module")
def served(url: str, folder: Path) -> LanguageModel:
    return load(f"server:{url}", tokenizer=folder)


@pytest.fixture(scope="module")
def questions() -> list[Question]:
    return load_tasks(["miniature"], Selection(limit=20))[0].questions


def test_probabilities_are_those_of_the_weights_within_rounding(
    served: LanguageModel, folder: Path, questions: list[Question]
) -> None:
    """Both compute in float32, in another order."""
    wide, narrow = (load(folder, dtype=dtype) for dtype in ("float64", "float32"))
    apart = {"ours": 0.0, "served": 0.0}
    for question in questions:
        _, prompts = ASKED.prompts(wide, question)
        expected, *others = (lm.logits(prompts) for lm in (wide, narrow, served))
        for name, rows in zip(apart, others, strict=True):
            for a, b in zip(expected, rows, strict=True):
                gap = (a.labels.softmax(dim=-1) - b.labels.softmax(dim=-1)).abs().max()
                apart[name] = max(apart[name], float(gap))
    assert 0 < apart["served"] < 4 * apart["ours"] < 1e-4


def test_the_prefix_cache_was_used(
    served: LanguageModel, url: str, questions: list[Question]
) -> None:
    """So the comparison above is one with its cache on."""
    ask(served, ASKED, questions[0])
    hits = [
        line for line in read(f"{url}/metrics").splitlines() if "prefix_cache_hits_total{" in line
    ]
    assert sum(float(line.rsplit(" ", 1)[1]) for line in hits) > 0


def test_twenty_questions_at_once_are_answered_as_each_alone(
    served: LanguageModel, questions: list[Question]
) -> None:
    alone = [ask(served, ASKED, question) for question in questions]
    with ThreadPool(20) as pool:
        together = pool.map(lambda question: ask(served, ASKED, question), questions, chunksize=1)
    for a, b in zip(alone, together, strict=True):
        assert a.prediction == b.prediction
        assert float((a.probabilities - b.probabilities).abs().max()) < 1e-5
