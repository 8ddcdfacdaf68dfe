"""The probe: which numbers of rows share their bits is measured, kept for this machine alone, and
used in calls of those numbers and no others."""

from __future__ import annotations

import json
import math
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import permutations
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from minise.exact import machine, probe
from minise.exact.calls import in_calls, split
from minise.exact.layers import linear
from minise.exact.probe import (
    NUMBERS,
    ROWS,
    Shape,
    alike,
    choose,
    classes_of,
    measure,
    numbers_for,
    samples,
    tried,
)
from tests.support.hostile import KERNELS, linear_by, table

ROOT = Path(__file__).parents[2]
DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
SHAPE = Shape(32, 24, False, torch.float32, 1)


class TestCalls:
    @pytest.mark.parametrize(
        "numbers", [(1,), (64,), (3, 5), (16, 64, 512), (1, 2, 4, 8, 512), NUMBERS]
    )
    def test_every_row_is_computed_once_in_calls_of_these_numbers(
        self, numbers: tuple[int, ...]
    ) -> None:
        """What fills a call up is zeros, and nothing of it comes out."""
        draw = random.Random(0)
        for R in (0, 1, 2, 3, 63, 64, 65, *(draw.randrange(1, 1200) for _ in range(9))):
            x = torch.randn(R, 3, dtype=torch.float64)
            sizes: list[int] = []

            def double(rows: Tensor) -> Tensor:
                sizes.append(len(rows))  # noqa: B023
                assert len(rows) == 0 or rows.data_ptr() % 64 == 0
                return torch.cat([2 * rows, (rows == 0).all(dim=1, keepdim=True) + 7], dim=1)

            out = in_calls(double, x, numbers)
            assert torch.equal(out, torch.cat([2 * x, x.new_full((R, 1), 7)], dim=1))
            assert R == 0 or set(sizes) <= set(numbers)
            assert R == 0 or list(split(R, numbers)) == sizes

    def test_the_last_call_alone_has_rows_to_spare(self) -> None:
        draw = random.Random(1)
        for _ in range(300):
            numbers = tuple(sorted(draw.sample(NUMBERS, k=draw.randrange(1, 6))))
            R = draw.randrange(1, 3000)
            calls = split(R, numbers)
            assert sum(calls[:-1]) < R <= sum(calls)
            assert set(calls) <= set(numbers)

    def test_a_kernel_is_given_rows_as_fresh_memory_has_them(self) -> None:
        """Side by side, from an address that is a multiple of 64 bytes: MKL chooses by that."""
        given: list[bool] = []

        def look(rows: Tensor) -> Tensor:
            given.append(rows.is_contiguous() and rows.data_ptr() % 64 == 0)
            return rows

        x = torch.randn(130, 7)
        for rows in (x, x[1:], x[:, 2:5], x[::2], torch.randn(7, 130).T, x[1:2].expand(65, -1)):
            for numbers in ((1,), (3, 5), (64,), (65, 129, 130)):
                assert torch.equal(in_calls(look, rows, numbers), rows)
        assert all(given)

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_a_part_of_a_tensor_has_its_bits(self, dtype: torch.dtype) -> None:
        """At an odd address, with rows that lie apart, or turned: of one row and of many."""
        draw = torch.Generator().manual_seed(0)
        for width in (20, 41, 64):
            weight = torch.randn(24, width, generator=draw).to(dtype)
            x = torch.randn(40, width, generator=draw).to(dtype)
            expected = linear(x, weight)
            wide = torch.empty(40, width + 3, dtype=dtype)
            wide[:, 1 : width + 1] = x
            assert torch.equal(linear(wide[:, 1 : width + 1], weight), expected)
            assert torch.equal(linear(x.T.contiguous().T, weight), expected)
            for start in (1, 3, 6):
                assert torch.equal(linear(x[start:], weight), expected[start:])
                assert torch.equal(linear(x[start], weight), expected[start])


@pytest.mark.parametrize("dtype", DTYPES)
class TestSamples:
    WIDTHS = (7, 20, 32, 192, 896)

    @pytest.mark.parametrize("bias", [False, True])
    def test_the_exact_sums_are_zero_or_one_product(self, dtype: torch.dtype, bias: bool) -> None:
        """What is left of the others is what was rounded on the way."""
        for inputs in self.WIDTHS:
            weight, added, rows = samples(Shape(inputs, 40, bias, dtype, 1))
            assert weight.shape == (40, inputs)
            assert rows.shape == (ROWS, inputs)
            assert weight.dtype == rows.dtype == dtype
            assert (added is not None) == bias
            assert added is None or (added == 0).sum() >= 10
            products = rows[:2, None].double() * weight[:8].double()
            for number, column in enumerate(products.transpose(0, 1).tolist()):
                for sizes in column:
                    assert any(sizes)
                    total = math.fsum(sizes)  # rounded once, at the end
                    assert total in (sizes if number % 2 else [0])

    @pytest.mark.parametrize("bias", [False, True])
    def test_another_order_shows(self, dtype: torch.dtype, bias: bool) -> None:
        """Even in the first row alone, which is all that a call of one row has: summed backwards,
        in 2, 3 or 4 parts, in parts that are rounded to the dtype, in parts of other lengths."""
        for inputs in self.WIDTHS[1:]:
            weight, added, rows = samples(Shape(inputs, 64, bias, dtype, 1))
            wide = torch.promote_types(dtype, torch.float32)
            products = rows[:1, None].to(wide) * weight.to(wide)

            def summed(lengths: list[int], back: bool = False, narrow: bool = False) -> Tensor:
                total = products.new_zeros(products.shape[:2])  # noqa: B023
                ordered = products.flip(-1) if back else products  # noqa: B023
                for some in ordered.split(lengths, dim=-1):
                    part = torch.zeros_like(total)
                    for product in some.unbind(dim=-1):
                        part = part + product
                    total = total + (part.to(dtype).to(wide) if narrow else part)  # noqa: B023
                return (total if added is None else total + added).to(dtype)  # noqa: B023

            def parts(number: int) -> list[int]:
                return [len(part) for part in torch.arange(inputs).tensor_split(number)]  # noqa: B023

            ways = [summed(parts(1)), summed(parts(1), back=True)]
            ways += [summed(parts(number)) for number in (2, 3, 4)]
            for a, b in permutations(ways, 2):
                assert not torch.equal(a, b), inputs
            halves = [parts(2), [inputs // 4, inputs - inputs // 4], parts(4)]
            rounded = [summed(lengths, narrow=True) for lengths in halves]
            for a, b in permutations(rounded, 2):
                assert not torch.equal(a, b), inputs


class TestAlike:
    @pytest.mark.parametrize("bias", [False, True])
    @pytest.mark.parametrize("dtype", KERNELS)
    def test_the_classes_are_those_of_the_kernel(
        self, monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, bias: bool
    ) -> None:
        """Ranges or not, as planted."""
        for name, class_of in KERNELS[dtype].items():
            monkeypatch.setattr(F, "linear", linear_by(class_of))
            for inputs, outputs in ((32, 32), (48, 16), (20, 288), (129, 8)):
                shape, expected = Shape(inputs, outputs, bias, dtype, 1), {}
                for number in tried(shape):
                    expected.setdefault(class_of(number), []).append(number)
                assert measure(shape) == list(expected.values()), (name, inputs, outputs)
                assert list(numbers_for(shape)) in expected.values()

    def test_a_number_for_which_a_place_matters_is_left_out(self) -> None:
        """Wherever the place is: in few rows or many, at the end, at every second."""
        weight, _, rows = samples(SHAPE)
        one, other = (linear_by(table(((n, n + 1000),))) for n in (1, 2000))

        def unlike(matters: Callable[[Tensor, int], Tensor]) -> list[int]:
            def kernel(x: Tensor) -> Tensor:
                there = matters(torch.arange(len(x)), len(x))
                return torch.where(there[:, None], other(x, weight), one(x, weight))

            found = [n for members in alike(kernel, rows, NUMBERS) for n in members]
            return [number for number in NUMBERS if number not in found]

        few = [2, 4, 8, 16, 24, 32, 48]
        assert unlike(lambda place, n: place < 0) == []
        assert unlike(lambda place, n: place % 2 == 1) == list(NUMBERS[1:])
        assert unlike(lambda place, n: place % 4 == 3) == list(NUMBERS[2:])
        assert unlike(lambda place, n: place % 8 == 0) == list(NUMBERS[1:])
        assert unlike(lambda place, n: place == n - 1) == list(NUMBERS[1:])
        assert unlike(lambda place, n: place >= n - n % 16) == [24]
        assert unlike(lambda place, n: (place > 0) & (place < 2) & (n < 49)) == few
        assert unlike(lambda place, n: (place >= 256) & (n == 384)) == [384]

    def test_one_row_alone_is_always_left(self) -> None:
        """So there is a choice on any machine."""
        _, _, rows = samples(SHAPE)
        classes = alike(lambda x: x + torch.arange(len(x))[:, None], rows, NUMBERS)
        assert classes == [[1]]
        assert choose(classes) == (1,)

    def test_the_choice_is_the_same_whatever_the_order_and_the_clock(self) -> None:
        assert choose([[1], [2, 4, 8], [16, 64, 512], [32, 128]]) == (16, 64, 512)
        assert choose([[1], [8], [64], [512]]) == (64,)
        assert choose([list(NUMBERS)]) == NUMBERS

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_a_row_has_the_same_bits_in_all_numbers_that_are_chosen(
        self, dtype: torch.dtype
    ) -> None:
        """On the kernels of this machine, with values that the probe did not see."""
        draw = torch.Generator().manual_seed(0)
        for inputs, outputs in ((32, 32), (41, 24), (192, 512), (512, 192)):
            shape = Shape(inputs, outputs, False, dtype, torch.get_num_threads())
            weight = torch.randn(outputs, inputs, generator=draw).to(dtype)
            own = torch.randn(1, inputs, generator=draw).to(dtype)
            bits = []
            for number in numbers_for(shape):
                x = torch.randn(number, inputs, generator=draw).to(dtype)
                for place in {0, number // 3, number - 1}:
                    x[place] = own
                    bits.append(F.linear(x, weight)[place])
            assert all(torch.equal(one, bits[0]) for one in bits), shape


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder for what is kept, and a process that has read nothing yet."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(probe, "_chosen", {})
    machine._read.cache_clear()
    yield tmp_path / "minise"
    machine._read.cache_clear()


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[Shape]:
    """The shapes that are measured, in their order."""
    seen: list[Shape] = []
    real = probe.measure

    def watch(shape: Shape) -> list[list[int]]:
        seen.append(shape)
        return real(shape)

    monkeypatch.setattr(probe, "measure", watch)
    return seen


def start_again() -> None:
    """As a new process would: it has read nothing and chosen nothing."""
    machine._read.cache_clear()
    probe._chosen.clear()


class TestKept:
    def test_what_is_measured_is_kept(self, cache: Path, measured: list[Shape]) -> None:
        first = numbers_for(SHAPE)
        assert numbers_for(SHAPE) == first
        start_again()
        assert numbers_for(SHAPE) == first
        assert measured == [SHAPE]
        (file,) = cache.iterdir()
        told = json.loads(file.read_text())
        assert told["machine"] == machine.facts()
        assert list(told["classes"]) == ["float32 32 x 24, threads 1"]

    def test_dtype_threads_and_bias_are_measured_apart(
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
    def test_on_another_machine_it_is_measured_anew(
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
    def test_a_file_that_says_nothing_usable_is_as_good_as_none(
        self, cache: Path, measured: list[Shape], content: bytes
    ) -> None:
        expected = numbers_for(SHAPE)
        (file,) = cache.iterdir()
        file.write_bytes(content.replace(b"NAME", str(SHAPE).encode()))
        start_again()
        assert numbers_for(SHAPE) == expected
        assert measured == [SHAPE, SHAPE]

    def test_a_folder_that_cannot_be_written_is_no_error(
        self, cache: Path, measured: list[Shape], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Nor one that is a file, that is full, or that has no place."""
        expected = numbers_for(SHAPE)

        def refuse(*given: object, **more: object) -> None:
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

    def test_a_planted_kernel_is_not_looked_up_nor_kept(
        self, cache: Path, measured: list[Shape], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        own = numbers_for(SHAPE)
        with monkeypatch.context() as planted:
            planted.setattr(F, "linear", linear_by(lambda rows: rows))
            assert len(numbers_for(SHAPE)) == 1
            assert len(classes_of(SHAPE)) == len(NUMBERS)
        assert numbers_for(SHAPE) == own
        start_again()
        assert numbers_for(SHAPE) == own
        assert measured == [SHAPE] * 3

    def test_processes_that_write_at_once(self, cache: Path) -> None:
        """The file is whole at any time, and what it holds is right. One may undo another's entry,
        which is measured again."""
        each = [[Shape(w, 8 * k, False, torch.float32, 1) for w in (8, 16, 24)] for k in (1, 2)]
        ready = "import sys, torch; from minise.exact.probe import Shape, numbers_for; "
        runs = []
        for shapes in each:
            said = ", ".join(
                f"Shape({s.inputs}, {s.outputs}, False, torch.float32, 1)" for s in shapes
            )
            program = ready + f"print([numbers_for(s) for s in [{said}]])"
            command = [sys.executable, "-c", program]
            runs.append(subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True))
        printed = [run.communicate()[0] for run in runs]
        (file,) = cache.iterdir()
        kept = json.loads(file.read_text())["classes"]
        for shapes, said in zip(each, printed, strict=True):
            assert said.strip() == str([choose(measure(shape)) for shape in shapes])
        names = {str(shape): shape for shapes in each for shape in shapes}
        assert len(kept) >= 3
        for name, classes in kept.items():
            assert classes == measure(names[name])

    def test_another_number_of_threads_after_loading(
        self, cache: Path, measured: list[Shape]
    ) -> None:
        own, weight = torch.get_num_threads(), torch.randn(24, 32)
        try:
            for threads in (1, 2, 1, 2):
                torch.set_num_threads(threads)
                linear(torch.randn(3, 32), weight)
        finally:
            torch.set_num_threads(own)
        assert [shape.threads for shape in measured] == [1, 2]


def test_no_test_writes_where_the_user_keeps_things() -> None:
    """Every test, and every process that a test starts, has a folder of this session's."""
    assert Path(os.environ["XDG_CACHE_HOME"]).name.startswith("minise-tests-")
    assert machine._file().parents[1] == Path(os.environ["XDG_CACHE_HOME"])
    assert Path.home() / ".cache" not in machine._file().parents
