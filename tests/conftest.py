from __future__ import annotations

import atexit
import contextlib
import gc
import os
import shutil
import tempfile
from pathlib import Path

import pytest
import torch

from minise import LanguageModel, Question
from minise.evaluation.meter import high_water
from tests.support.runs import data as data
from tests.support.runs import model as model
from tests.support.runs import undrawn as undrawn
from tests.support.runs import whole as whole
from tests.support.tiny import FAMILIES, load_tiny


def own_cache() -> None:
    """Let minise keep what it measures of this machine in a folder of this session, which its
    processes share: no test reads or writes the user's. Other libraries keep theirs."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    os.environ.setdefault("HF_HOME", str(home / "huggingface"))
    os.environ.setdefault("MPLCONFIGDIR", str(home / "matplotlib"))  # it would look for all fonts
    os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp(prefix="minise-tests-")
    atexit.register(shutil.rmtree, os.environ["XDG_CACHE_HOME"], ignore_errors=True)


os.environ.pop("FORCE_COLOR", None)  # the tests compare messages without colours
if "PYTEST_XDIST_WORKER" not in os.environ:  # a worker is given what its session has set
    own_cache()

# torch keeps the last 1,024 programs that it made for products of bfloat16 and float16, one for
# each shape, and so does the library below it. The tests have thousands of shapes: 0.6 GB.
for name in ("LRU_CACHE_CAPACITY", "ONEDNN_PRIMITIVE_CACHE_CAPACITY"):
    os.environ.setdefault(name, "64")

# The models are tiny: threads would only wait for each other.
torch.set_num_threads(1)


def pytest_xdist_auto_num_workers() -> int:
    """Of -n auto: one more than there are processors, because some tests wait for processes."""
    return (os.cpu_count() or 1) + 1


def pytest_collection_finish() -> None:
    """An evaluation collects garbage before it measures memory, for each method. It need not look
    at the tests and at the libraries they have imported, which took most of the time of a small
    run."""
    gc.freeze()


# Three workers and the system then fit in 8 GB. The imports of all extras take half of the limit.
# With CUDA, torch takes some 0.3 GB more.
MOST_BYTES = 1_500_000_000 if torch.version.cuda is None else 2_000_000_000
above = False


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown() -> None:
    """The first test after which the peak of this process' memory is above the limit fails."""
    global above
    with contextlib.suppress(OSError):  # not Linux
        before, above = above, high_water() > MOST_BYTES
        if above and not before:
            pytest.fail(f"memory had a peak of {high_water():,} bytes, over {MOST_BYTES:,}")


@pytest.fixture(scope="session", params=list(FAMILIES))
def lm(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> LanguageModel:
    """A tiny random model in float64, once per family."""
    return load_tiny(tmp_path_factory.mktemp(request.param), FAMILIES[request.param])


@pytest.fixture(scope="session")
def llama_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random LLaMA checkpoint on disk. Copy it before changing it."""
    folder = tmp_path_factory.mktemp("llama-folder")
    load_tiny(folder, FAMILIES["llama"])
    return folder


@pytest.fixture
def question() -> Question:
    """Five choices of unequal length: K is divided by neither 2, 3 nor 4."""
    return Question("Which is a bird?", ["wren", "a trout", "oak", "the red ant", "quartz"])
