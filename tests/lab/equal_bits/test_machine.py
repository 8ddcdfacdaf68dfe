"""The facts about a machine, and the files that store what was measured on it."""

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from minise.lab.equal_bits import probe, remembered
from minise.lab.equal_bits.probe import Shape, numbers_for
from minise.loading import machine
from minise.verify.words import in_words
from tests.lab.support.hostile import linear_by

SHAPE = Shape(32, 24, False, torch.float32, 1)
Patch = pytest.MonkeyPatch
# What makes it another machine.
CHANGES: dict[str, Callable[[Patch], None]] = {
    "a variable of MKL": lambda patch: patch.setenv("MKL_CBWR", "a value that nobody sets"),
    "a variable of oneDNN": lambda patch: patch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2"),
    "a variable of torch": lambda patch: patch.setenv("ATEN_CPU_CAPABILITY", "default"),
    "a variable of OpenMP": lambda patch: patch.setenv("OMP_NUM_THREADS", "7"),
    "torch": lambda patch: patch.setattr(torch, "__version__", "9.9.9"),
    "its build": lambda patch: patch.setattr(torch.__config__, "show", lambda: "another"),
    "the system": lambda patch: patch.setattr(remembered.platform, "platform", lambda: "another"),
    "the processor": lambda patch: patch.setattr(machine, "processor", lambda: "another"),
    "instructions": lambda patch: patch.setattr(machine, "instructions", lambda: "another"),
    "the rules of the probe": lambda patch: patch.setattr(
        remembered, "FORMAT", remembered.FORMAT + 1
    ),
}


def start_again() -> None:
    """Forget all that was read and chosen, as in a new process."""
    probe._chosen.clear()


def test_each_dtype_thread_number_and_bias_is_measured_once_and_stored(
    cache: Path, measured: list[Shape]
) -> None:
    shapes = [SHAPE, replace(SHAPE, dtype=torch.float64), replace(SHAPE, bias=True)]
    shapes += [replace(SHAPE, threads=2), replace(SHAPE, inputs=24), replace(SHAPE, outputs=32)]
    first = [numbers_for(shape) for shape in shapes]
    start_again()
    assert [numbers_for(shape) for shape in shapes] == first
    assert measured == shapes
    stored = [json.loads(file.read_text()) for file in cache.iterdir()]
    assert [one["machine"] for one in stored] == [machine.facts()] * len(shapes)
    assert {one["name"] for one in stored} == {*map(str, shapes)}
    assert str(SHAPE) == "float32 32 x 24, threads 1"


@pytest.mark.parametrize("name", CHANGES)
def test_another_machine_is_measured_anew(
    cache: Path, measured: list[Shape], monkeypatch: Patch, name: str
) -> None:
    numbers_for(SHAPE)
    with monkeypatch.context() as other:
        CHANGES[name](other)
        for _ in range(2):  # and its own files are read again
            start_again()
            numbers_for(SHAPE)
        assert measured == [SHAPE, SHAPE]
    start_again()
    numbers_for(SHAPE)
    assert measured == [SHAPE, SHAPE]
    assert len(list(cache.iterdir())) == 2


@pytest.mark.parametrize(
    "content",
    [
        b"\xff\xfe",
        b"[]",
        b'{"classes": [1]}',
        b"[" * 100_000,
    ],
    ids=lambda content: content[:40].decode(errors="replace"),
)
def test_an_unusable_file_is_treated_as_absent(
    cache: Path, measured: list[Shape], content: bytes
) -> None:
    expected = numbers_for(SHAPE)
    (file,) = cache.iterdir()
    file.write_bytes(content.replace(b"NAME", str(SHAPE).encode()))
    start_again()
    assert numbers_for(SHAPE) == expected
    assert measured == [SHAPE, SHAPE]


def test_a_replaced_kernel_is_neither_looked_up_nor_stored(
    cache: Path, measured: list[Shape], monkeypatch: Patch
) -> None:
    expected = numbers_for(SHAPE)
    with monkeypatch.context() as planted:
        planted.setattr(F, "linear", linear_by(lambda rows: rows))
        assert len(numbers_for(SHAPE)) == 1
    assert numbers_for(SHAPE) == expected
    start_again()
    assert numbers_for(SHAPE) == expected
    assert measured == [SHAPE] * 2


def test_no_test_writes_to_the_users_cache() -> None:
    """Every test, and every process that a test starts, uses a temporary folder of this session."""
    assert Path(os.environ["XDG_CACHE_HOME"]).name.startswith("minise-tests-")
    assert remembered._file("one").parents[1] == Path(os.environ["XDG_CACHE_HOME"])


def test_the_facts_name_processor_instructions_torch_and_variables(monkeypatch: Patch) -> None:
    monkeypatch.setenv("MKL_CBWR", "COMPATIBLE")
    monkeypatch.setenv("MINISE_UNRELATED", "x")
    # How many kernels are kept does not choose among them.
    monkeypatch.setenv("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "7")
    facts, environment = machine.facts(), machine.environment()
    assert list(facts) == ["cpu", "instructions", "torch", "environment"]
    assert facts["cpu"] == machine.processor() != ""
    assert facts["torch"] == torch.__version__
    assert facts["environment"] == environment
    assert environment["MKL_CBWR"] == "COMPATIBLE"
    assert not {"MINISE_UNRELATED", "ONEDNN_PRIMITIVE_CACHE_CAPACITY"} & environment.keys()
    for threads, words in ((1, ", threads 1, "), (2, ", threads 2, ")):
        monkeypatch.setattr(torch, "get_num_threads", lambda n=threads: n)
        line = in_words()
        assert line.startswith(f"{machine.processor()}, {machine.instructions()}, torch ")
        assert words in line
        assert "MKL_CBWR=COMPATIBLE" in line


def test_a_processor_is_named_with_its_numbers(monkeypatch: Patch) -> None:
    cores = "model name\t: AMD EPYC\ncpu family\t: 26\nmodel\t\t: 2\n\nmodel name\t: other\n"
    monkeypatch.setattr(machine.Path, "read_text", lambda path: cores)
    assert machine.processor() == "AMD EPYC (family 26, model 2)"
    monkeypatch.setattr(machine.Path, "read_text", lambda path: "model name\t: Small\n")
    assert machine.processor() == "Small"
