"""The facts about a machine, and the file that stores what was measured on it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from minise.exact import machine, probe
from minise.exact.probe import NUMBERS, Shape, choose, classes_of, measure, numbers_for
from tests.support.hostile import linear_by

ROOT = Path(__file__).parents[2]
SHAPE = Shape(32, 24, False, torch.float32, 1)


def start_again() -> None:
    """Forget all that was read and chosen, as in a new process."""
    machine._read.cache_clear()
    probe._chosen.clear()


class TestStored:
    def test_measured_classes_are_stored_and_read_again(
        self, cache: Path, measured: list[Shape]
    ) -> None:
        first = numbers_for(SHAPE)
        assert numbers_for(SHAPE) == first
        start_again()
        assert numbers_for(SHAPE) == first
        assert measured == [SHAPE]
        (file,) = cache.iterdir()
        stored = json.loads(file.read_text())
        assert stored["machine"] == machine.facts()
        assert list(stored["classes"]) == ["float32 32 x 24, threads 1"]

    def test_each_dtype_thread_number_and_bias_is_measured_separately(
        self, cache: Path, measured: list[Shape]
    ) -> None:
        shapes = [SHAPE, replace(SHAPE, dtype=torch.float64), replace(SHAPE, bias=True)]
        shapes += [replace(SHAPE, threads=2), replace(SHAPE, inputs=24), replace(SHAPE, outputs=32)]
        for _ in range(2):
            for shape in shapes:
                numbers_for(shape)
            start_again()
        assert measured == shapes

    @pytest.mark.parametrize(
        "change",
        [
            ("MKL_CBWR", "a value that nobody sets"),
            ("ONEDNN_MAX_CPU_ISA", "AVX2"),
            ("ATEN_CPU_CAPABILITY", "default"),
            ("OMP_NUM_THREADS", "7"),
            "torch",
            "build",
            "processor",
            "instructions",
            "system",
            "format",
        ],
        ids=str,
    )
    def test_another_machine_is_measured_anew(
        self,
        cache: Path,
        measured: list[Shape],
        monkeypatch: pytest.MonkeyPatch,
        change: str | tuple[str, str],
    ) -> None:
        numbers_for(SHAPE)
        start_again()
        with monkeypatch.context() as other:
            if isinstance(change, tuple):
                other.setenv(*change)
            elif change == "torch":
                other.setattr(torch, "__version__", "9.9.9")
            elif change == "build":
                other.setattr(torch.__config__, "show", lambda: "another build")
            elif change == "system":
                other.setattr(machine.platform, "platform", lambda: "another system")
            elif change == "format":
                other.setattr(machine, "FORMAT", machine.FORMAT + 1)
            else:
                other.setattr(machine, change, lambda: "another")
            numbers_for(SHAPE)
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
            b"",
            b"{",
            b"\xff\xfe",
            b"[]",
            b"null",
            b"{}",
            b'{"classes": null}',
            b'{"classes": [1]}',
            b'{"classes": {"NAME": null}}',
            b'{"classes": {"NAME": []}}',
            b'{"classes": {"NAME": [[]]}}',
            b'{"classes": {"NAME": [[0, 8]]}}',
            b'{"classes": {"NAME": [[-8]]}}',
            b'{"classes": {"NAME": [[8, 77777777777]]}}',
            b'{"classes": {"NAME": [[1e999]]}}',
            b'{"classes": {"NAME": [["eight"]]}}',
            b"[" * 100_000,
        ],
        ids=lambda content: content[:40].decode(errors="replace"),
    )
    def test_an_unusable_file_is_treated_as_absent(
        self, cache: Path, measured: list[Shape], content: bytes
    ) -> None:
        expected = numbers_for(SHAPE)
        (file,) = cache.iterdir()
        file.write_bytes(content.replace(b"NAME", str(SHAPE).encode()))
        start_again()
        assert numbers_for(SHAPE) == expected
        assert measured == [SHAPE, SHAPE]

    def test_a_folder_that_cannot_be_written_causes_no_error(
        self, cache: Path, measured: list[Shape], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Also if its place holds a file, if the disk is full, or if there is no home folder."""
        expected = numbers_for(SHAPE)

        def refuse(*arguments: object, **options: object) -> None:
            raise OSError(28, "No space left on device")

        (cache.parent / "file").write_text("")
        for folder in (cache.parent / "file", Path("/proc/none")):
            monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
            start_again()
            assert numbers_for(SHAPE) == expected
        monkeypatch.delenv("XDG_CACHE_HOME")
        for name in ("HOME", "USERPROFILE"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setattr(Path, "home", lambda: (_ for _ in ()).throw(RuntimeError("no home")))
        start_again()
        assert numbers_for(SHAPE) == expected
        monkeypatch.setenv("XDG_CACHE_HOME", str(cache.parent / "full"))
        monkeypatch.setattr(machine.os, "replace", refuse)
        start_again()
        assert numbers_for(SHAPE) == expected
        assert measured == [SHAPE] * 5

    def test_a_replaced_kernel_is_neither_looked_up_nor_stored(
        self, cache: Path, measured: list[Shape], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        expected = numbers_for(SHAPE)
        with monkeypatch.context() as planted:
            planted.setattr(F, "linear", linear_by(lambda rows: rows))
            assert len(numbers_for(SHAPE)) == 1
            assert len(classes_of(SHAPE)) == len(NUMBERS)
        assert numbers_for(SHAPE) == expected
        start_again()
        assert numbers_for(SHAPE) == expected
        assert measured == [SHAPE] * 3

    def test_processes_may_write_at_the_same_time(self, cache: Path) -> None:
        """The file is complete at any time, and its content is right. One process may overwrite
        another's entry, which is then measured again."""
        each = [[Shape(w, 8 * k, False, torch.float32, 1) for w in (8, 16, 24)] for k in (1, 2)]
        ready = "import sys, torch; from minise.exact.probe import Shape, numbers_for; "
        runs = []
        for shapes in each:
            calls = ", ".join(
                f"Shape({s.inputs}, {s.outputs}, False, torch.float32, 1)" for s in shapes
            )
            program = ready + f"print([numbers_for(s) for s in [{calls}]])"
            command = [sys.executable, "-c", program]
            runs.append(subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True))
        printed = [run.communicate()[0] for run in runs]
        (file,) = cache.iterdir()
        stored = json.loads(file.read_text())["classes"]
        for shapes, output in zip(each, printed, strict=True):
            assert output.strip() == str([choose(measure(shape)) for shape in shapes])
        names = {str(shape): shape for shapes in each for shape in shapes}
        assert len(stored) >= 3
        for name, classes in stored.items():
            assert classes == measure(names[name])


def test_no_test_writes_to_the_users_cache() -> None:
    """Every test, and every process that a test starts, uses a temporary folder of this session."""
    assert Path(os.environ["XDG_CACHE_HOME"]).name.startswith("minise-tests-")
    assert machine._file().parents[1] == Path(os.environ["XDG_CACHE_HOME"])
    assert Path.home() / ".cache" not in machine._file().parents


def test_the_facts_name_processor_instructions_torch_and_variables(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MKL_CBWR", "COMPATIBLE")
    monkeypatch.setenv("MINISE_UNRELATED", "x")
    facts = machine.facts()
    assert list(facts) == ["cpu", "instructions", "torch", "environment"]
    assert facts["cpu"]
    assert facts["torch"] == torch.__version__
    assert facts["environment"] == machine.environment()
    assert machine.environment()["MKL_CBWR"] == "COMPATIBLE"
    assert "MINISE_UNRELATED" not in machine.environment()
    assert machine.facts_and_threads() == {**facts, "threads": torch.get_num_threads()}


def test_the_line_in_words_holds_every_fact(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_PLACES", "cores")
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    words = machine.in_words()
    assert words.startswith(f"{machine.processor()}, {machine.instructions()}, torch ")
    assert f"torch {torch.__version__}, 1 thread, " in words
    assert "OMP_PLACES=cores" in words
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    assert ", 2 threads, " in machine.in_words()


def test_a_cpu_with_avx2_and_nothing_newer_does_not_compute_with_16_bits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for instructions, expected in (("AVX2", False), ("AVX512", True), ("AVX2 + AMX", True)):
        monkeypatch.setattr(machine, "instructions", lambda text=instructions: text)
        assert machine.computes_16_bits() is expected


def test_the_size_of_a_cache_of_kernels_makes_no_other_machine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "7")
    before = machine.facts()
    monkeypatch.setenv("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "8")
    assert machine.facts() == before
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
    assert machine.facts() != before
