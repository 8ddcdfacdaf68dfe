"""`minise bits`: which numbers of rows share their bits on this machine, and what they cost. And
MKL's strict mode, which the command line asks for and the library does not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import chain
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from minise.bench.bits import Bits, in_words, measure_bits
from minise.bench.measure import empty_decoder
from minise.bench.shapes import BENCH_SHAPE, PUBLISHED
from minise.errors import InputError
from minise.exact import probe, strict
from minise.exact.layers import shapes_of
from minise.exact.probe import Shape
from minise.loading import identity
from minise.loading.config_json import config_from_dict
from tests.support.commands import assert_one_line, run

ROOT = Path(__file__).parents[2]
FACTS = {"dtype", "cpu", "instructions", "torch", "environment", "threads", "shapes"}
SMALL = Shape(64, 48, True, torch.float32, 1)


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "NUMBERS", (1, 2, 8))
    monkeypatch.setattr("minise.bench.bits.CALLS", 1)


@pytest.fixture
def strange(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine on which 8 and 32 rows are summed backwards, and 16 by the place of the row."""
    real = F.linear

    def linear(x, weight, bias=None):
        if len(x) == 16:
            return torch.cat([linear(x[:8], weight, bias), real(x[:8], weight, bias)])
        if len(x) in (8, 32):
            return real(x.flip(-1).double(), weight.flip(-1).double()).to(x.dtype)
        return torch.cat([real(x[i : i + 1], weight) for i in range(len(x))])

    monkeypatch.setattr(F, "linear", linear)
    monkeypatch.setattr(probe, "NUMBERS", (1, 2, 4, 8, 16, 32, 64))


def check_shape(told: dict) -> None:
    assert set(told) == {"in", "out", "bias", "tried", "classes", "chosen", "microseconds"}
    rows = told["tried"]
    assert [int(number) for number in told["microseconds"]] in (rows, [])  # or it was busy
    members = list(chain.from_iterable(told["classes"]))
    assert len(members) == len(set(members))
    assert set(members) <= set(rows)
    assert told["chosen"] in told["classes"]
    assert all(us > 0 for us in told["microseconds"].values())


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
@pytest.mark.usefixtures("few")
def test_json_is_the_contracts(capsys, llama_folder: Path, dtype: str) -> None:
    asked = ("bits", "--model", llama_folder, "--dtype", dtype, "--threads", 1, "--json")
    status, out, err = run(capsys, *asked)
    assert (status, err) == (0, "")
    told = json.loads(out)
    assert set(told) == FACTS | {"model"}
    assert (told["dtype"], told["threads"]) == (dtype, torch.get_num_threads())
    assert told["torch"] == torch.__version__
    sizes = [(one["in"], one["out"], one["bias"]) for one in told["shapes"]]
    layers = [(32, 32, False), (32, 16, False), (32, 48, False), (48, 32, False)]
    assert sizes == [*layers, (32, 288, False)]  # and the output matrix
    for one in told["shapes"]:
        check_shape(one)


@pytest.mark.usefixtures("few")
def test_text_is_a_block_for_each_shape_of_a_model_that_ships(capsys) -> None:
    status, out, err = run(capsys, "bits")
    assert (status, err) == (0, "")
    lines = out.splitlines()
    assert lines[0] == "weights/tiny-llama: float32"
    assert f"torch {torch.__version__}, 1 thread" in lines[1]
    titles = [line.partition(":")[0] for line in lines if line.startswith(("192 x ", "512 x "))]
    assert titles == ["192 x 192", "192 x 64", "192 x 512", "512 x 192", "192 x 1,024"]
    for name in ("rows", "microseconds", "of a row"):
        assert sum(line.startswith(f"  {name} ") for line in lines) == len(titles)


@pytest.mark.usefixtures("few")
def test_it_measures_anew_and_reads_no_weights(
    capsys, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, llama_folder: Path
) -> None:
    """config.json alone is enough, and the cache is neither read nor written."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "config.json").write_bytes((llama_folder / "config.json").read_bytes())
    assert run(capsys, "bits", "--model", tmp_path)[0] == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.json"]


@pytest.mark.usefixtures("few")
def test_a_published_shape_is_measured(capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    measured: list[Shape] = []

    def measure(shape: Shape) -> Bits:
        measured.append(shape)
        return Bits(shape, [[1], [2, 8]], (2, 8), {1: 5.0, 2: 6.0, 8: 8.0})

    monkeypatch.setattr("minise.bench.bits.measure_bits", measure)
    status, out, _ = run(capsys, "bits", "--shape", "Qwen/Qwen2-7B", "--threads", 1, "--json")
    told = json.loads(out)
    assert (status, told["shape"]) == (0, "Qwen/Qwen2-7B")
    assert [(one.inputs, one.outputs, one.bias) for one in measured] == [
        *((3584, 3584, True), (3584, 512, True), (3584, 3584, False)),
        *((3584, 18944, False), (18944, 3584, False), (3584, 152064, False)),
    ]
    assert run(capsys, "bits", "--shape", "benchmark", "--json")[0] == 0
    assert (measured[-1].inputs, measured[-1].outputs) == (1024, 32000)


@pytest.mark.usefixtures("strange")
def test_the_classes_are_those_of_the_kernel() -> None:
    found = measure_bits(Shape(64, 48, False, torch.float32, 1))
    assert found.classes == [[1, 2, 4, 64], [8, 32]]
    assert list(found.microseconds) == [1, 2, 4, 8, 16, 32, 64]  # 16 is in no class
    text = found.as_text().splitlines()
    assert text[0] == "64 x 48: {1 to 4, 64 and more}; {8, 32}"
    assert text[1].split() == ["rows", "1*", "2*", "4*", "8", "16", "32", "64*"]
    assert text[3].split()[-1] == "1.00"


def test_a_large_shape_is_tried_with_few_rows_and_little_memory() -> None:
    """The output matrix of an 8B model is the largest by far."""
    config = config_from_dict(PUBLISHED["meta-llama/Meta-Llama-3-8B"])
    shapes = shapes_of(empty_decoder(config, torch.float32), torch.float32)
    assert [max(probe.tried(shape)) for shape in shapes] == [512, 512, 128, 128, 16]


def test_16_bit_numbers_are_tried_in_small_calls_where_they_are_slow(monkeypatch) -> None:
    shape = Shape(64, 48, False, torch.bfloat16, 1)
    monkeypatch.setattr(probe, "computes_16_bits", lambda: False)
    assert max(probe.tried(shape)) == probe.SLOW
    monkeypatch.setattr(probe, "computes_16_bits", lambda: True)
    assert max(probe.tried(shape)) == max(probe.NUMBERS)
    assert max(probe.tried(SMALL)) == max(probe.NUMBERS)


@pytest.mark.parametrize(
    ("classes", "words"),
    [
        ([[1, 2, 4, 8, 16]], "all"),
        ([[1], [2, 4, 8], [16]], "1; 2 to 8; 16 and more"),
        ([[1, 2, 16], [4, 8]], "{1 to 2, 16 and more}; 4 to 8"),
        ([[1, 4], [2]], "{1, 4}; 2"),
    ],
)
def test_classes_in_words(classes: list[list[int]], words: str) -> None:
    assert in_words(classes, [1, 2, 4, 8, 16]) == words


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["--model", "no/such/folder"], ["no/such/folder"]),
        (["--model", "./no/such/folder"], ["no such folder"]),
        (["--shape", "gpt-2"], ["--shape", "gpt-2"]),
        (["--model", "x/y", "--shape", "benchmark"], ["--model", "--shape", "exclude"]),
        (["--revision", "main", "--shape", "benchmark"], ["--revision", "--shape"]),
        (["--revision", "main"], ["omit the revision"]),
        (["--dtype", "int8"], ["--dtype", "int8"]),
        (["--threads", "0"], ["--threads", "0"]),
        (["--model", "transformers:x"], ["transformers:x"]),
    ],
)
def test_unusable_arguments_are_one_line(capsys, monkeypatch, arguments, parts) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert_one_line(*run(capsys, "bits", *arguments), parts)


def test_every_machine_of_the_page_is_told_in_the_commands_form() -> None:
    """docs/bits/ holds what `minise bits --json` prints: no paths, no names of hosts."""
    files = sorted((ROOT / "docs" / "bits").glob("*.json*"))
    assert files
    for path in files:
        for line in path.read_text(encoding="utf-8").splitlines():
            told = json.loads(line)
            assert set(told) - {"model", "shape"} == FACTS, path
            assert not os.path.isabs(told.get("model", ""))
            for one in told["shapes"]:
                check_shape(one)


class TestStrictMode:
    """MKL reads MKL_CBWR at its first product, so it is set before torch is imported."""

    START = """
import sys
from minise.exact import strict
strict.is_intel = lambda: {intel}
import minise.__main__
assert "torch" not in sys.modules
import os, torch
print(os.environ.get("MKL_CBWR"))
"""

    def started(self, intel: bool, **given: str) -> str:
        """What a process sees after its start on such a processor."""
        environment = {name: v for name, v in os.environ.items() if name != strict.VARIABLE}
        command = [sys.executable, "-c", self.START.format(intel=intel)]
        done = subprocess.run(
            command, cwd=ROOT, env=environment | given, capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    def test_it_is_asked_for_on_intels_processors_alone(self) -> None:
        assert self.started(intel=True) == "AUTO,STRICT"
        assert self.started(intel=False) == "None"

    def test_what_the_user_has_set_stays(self) -> None:
        assert self.started(intel=True, MKL_CBWR="COMPATIBLE") == "COMPATIBLE"
        assert self.started(intel=True, MKL_CBWR="") == ""

    def test_the_processor_names_its_maker(self, monkeypatch, tmp_path: Path) -> None:
        for name, expected in (("GenuineIntel", True), ("AuthenticAMD", False)):
            path = tmp_path / name
            path.write_text(f"processor\t: 0\nvendor_id\t: {name}\n")
            monkeypatch.setattr("builtins.open", lambda _, path=path: path.open())
            assert strict.is_intel() is expected

    def test_without_proc_the_systems_own_word_counts(self, monkeypatch) -> None:
        def missing(_: str) -> None:
            raise FileNotFoundError

        monkeypatch.setattr("builtins.open", missing)
        monkeypatch.setenv("PROCESSOR_IDENTIFIER", "Intel64 Family 6 Model 143, GenuineIntel")
        assert strict.is_intel()
        monkeypatch.setenv("PROCESSOR_IDENTIFIER", "ARMv8")
        assert not strict.is_intel()

    def test_the_library_leaves_the_process_as_it_is(self) -> None:
        code = (
            "import os; before = dict(os.environ)\n"
            "from minise.exact import strict; strict.is_intel = lambda: True\n"
            "import minise; minise.load('weights/tiny-llama')\n"
            "assert dict(os.environ) == before"
        )
        environment = {name: v for name, v in os.environ.items() if name != strict.VARIABLE}
        subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, check=True)

    @pytest.mark.usefixtures("few")
    def test_bits_and_bench_say_what_is_in_force(
        self, capsys, monkeypatch: pytest.MonkeyPatch, llama_folder: Path
    ) -> None:
        monkeypatch.setenv("MKL_CBWR", "AUTO,STRICT")
        asked = ("--model", llama_folder, "--threads", 1)
        bench = ("bench", *asked, "--rounds", 1, "--no-peers")
        assert "MKL_CBWR=AUTO,STRICT\n" in run(capsys, "bits", *asked)[1]
        assert "MKL_CBWR=AUTO,STRICT\n" in run(capsys, *bench)[1]
        told = json.loads(run(capsys, *bench, "--json")[1])["machine"]
        assert told["environment"]["MKL_CBWR"] == "AUTO,STRICT"
        assert told["threads"] == torch.get_num_threads()

    def test_results_say_what_is_in_force(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """What `identity.machine` says stands in results.json, and in run.json to compare with."""
        monkeypatch.setenv("MKL_CBWR", "AUTO,STRICT")
        told = identity.machine()["machine"]
        assert set(told) == {"cpu", "instructions", "torch", "environment"}
        assert told["environment"]["MKL_CBWR"] == "AUTO,STRICT"


@pytest.mark.parametrize("command", ["ask", "bench"])
def test_threads_are_set_before_the_numbers_of_rows_are_found(
    capsys, monkeypatch: pytest.MonkeyPatch, llama_folder: Path, command: str
) -> None:
    """The numbers depend on them."""
    order: list[str] = []
    monkeypatch.setattr(torch, "set_num_threads", lambda number: order.append(f"{number} threads"))
    monkeypatch.setattr("os.cpu_count", lambda: 8)

    def probe(decoder, dtype, device):
        order.append("probed")
        raise InputError("enough")

    monkeypatch.setattr("minise.loading.checkpoint.probe", probe)
    monkeypatch.setattr("minise.bench.measure.probe", probe)
    monkeypatch.setitem(BENCH_SHAPE, "vocab_size", 100)
    given = ("--model", llama_folder) if command == "ask" else ()
    assert run(capsys, command, *given, "--threads", 3)[0] == 2
    assert order == ["3 threads", "probed"]
