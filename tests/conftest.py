"""Settings and models for the tests of all rooms."""

import atexit
import os
import shutil
import tempfile
from pathlib import Path

import pytest
import torch

from minise import LocalModel, Question, load
from tests.reference.support.equal import HAS_LAB
from tests.reference.support.tiny import ALL_FAMILIES, FAMILIES, load_tiny, write_checkpoint
from tests.reference.verify.cases import SHIPPED, Models


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


@pytest.hookimpl(optionalhook=True)  # pytest alone has no such hook
def pytest_xdist_auto_num_workers() -> int:
    """Of -n auto: one more than there are processors, because some tests wait for processes."""
    return (os.cpu_count() or 1) + 1


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave out what asks for something of the lab by its name, where there is no lab."""
    if HAS_LAB:
        return
    for item in items:
        if item.get_closest_marker("lab"):
            item.add_marker(pytest.mark.skip(reason="asks for something of minise/lab"))


@pytest.fixture(scope="session", params=list(FAMILIES))
def lm(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> LocalModel:
    """A tiny random model in float64, once per family."""
    return load_tiny(tmp_path_factory.mktemp(request.param), FAMILIES[request.param])


@pytest.fixture(scope="session")
def llama_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random LLaMA checkpoint on disk. Copy it before changing it."""
    folder = tmp_path_factory.mktemp("llama-folder")
    load_tiny(folder, FAMILIES["llama"])
    return folder


@pytest.fixture(scope="session")
def qwen(tmp_path_factory: pytest.TempPathFactory) -> LocalModel:
    """The tiny model with most facts (biases, windows in some layers, tied output), for tests that
    need one model only."""
    return load_tiny(tmp_path_factory.mktemp("qwen"), FAMILIES["qwen2"])


@pytest.fixture
def question() -> Question:
    """Five choices of unequal length: K is divided by neither 2, 3 nor 4."""
    return Question("Which is a bird?", ["wren", "a trout", "oak", "the red ant", "quartz"])


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Models:
    """A freshly loaded model of the name: a tiny random one of a family, or "shipped"."""
    folders = {
        name: write_checkpoint(tmp_path_factory.mktemp(name), raw)
        for name, raw in ALL_FAMILIES.items()
    }

    def make(name: str, dtype: torch.dtype = torch.float64, equal_bits: bool = False) -> LocalModel:
        lm = load(folders.get(name, SHIPPED), dtype=dtype, equal_bits=equal_bits)
        assert isinstance(lm, LocalModel)
        return lm

    return make
