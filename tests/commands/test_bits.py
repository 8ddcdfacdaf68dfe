"""`minise bits`: which numbers of rows share their bits on this machine, and what they cost."""

from __future__ import annotations

import json
import os
from itertools import chain
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from minise.bench.bits import Bits, in_words, measure_bits
from minise.bench.measure import empty_decoder
from minise.bench.shapes import BENCH_SHAPE, PUBLISHED
from minise.errors import InputError
from minise.exact import probe
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


def check_shape(shape: dict) -> None:
    assert set(shape) == {"in", "out", "bias", "tried", "classes", "chosen", "microseconds"}
    rows = shape["tried"]
    assert [int(number) for number in shape["microseconds"]] in (rows, [])  # or it was busy
    members = list(chain.from_iterable(shape["classes"]))
    assert len(members) == len(set(members))
    assert set(members) <= set(rows)
    assert shape["chosen"] in shape["classes"]
    assert all(us > 0 for us in shape["microseconds"].values())


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
@pytest.mark.usefixtures("few")
def test_json_has_the_keys_of_the_contract(capsys, llama_folder: Path, dtype: str) -> None:
    command = ("bits", "--model", llama_folder, "--dtype", dtype, "--threads", 1, "--json")
    status, out, err = run(capsys, *command)
    assert (status, err) == (0, "")
    report = json.loads(out)
    assert set(report) == FACTS | {"model"}
    assert (report["dtype"], report["threads"]) == (dtype, torch.get_num_threads())
    assert report["torch"] == torch.__version__
    sizes = [(one["in"], one["out"], one["bias"]) for one in report["shapes"]]
    layers = [(32, 32, False), (32, 16, False), (32, 48, False), (48, 32, False)]
    assert sizes == [*layers, (32, 288, False)]  # and the output matrix
    for one in report["shapes"]:
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
def test_bits_are_measured_each_time_and_no_weights_are_read(
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
    report = json.loads(out)
    assert (status, report["shape"]) == (0, "Qwen/Qwen2-7B")
    assert [(one.inputs, one.outputs, one.bias) for one in measured] == [
        *((3584, 3584, True), (3584, 512, True), (3584, 3584, False)),
        *((3584, 18944, False), (18944, 3584, False), (3584, 152064, False)),
    ]
    assert run(capsys, "bits", "--shape", "benchmark", "--json")[0] == 0
    assert (measured[-1].inputs, measured[-1].outputs) == (1024, 32000)


@pytest.mark.usefixtures("strange")
def test_the_classes_are_those_of_the_kernel() -> None:
    bits = measure_bits(Shape(64, 48, False, torch.float32, 1))
    assert bits.classes == [[1, 2, 4, 64], [8, 32]]
    assert list(bits.microseconds) == [1, 2, 4, 8, 16, 32, 64]  # 16 is in no class
    text = bits.as_text().splitlines()
    assert text[0] == "64 x 48: {1 to 4, 64 and more}; {8, 32}"
    assert text[1].split() == ["rows", "1*", "2*", "4*", "8", "16", "32", "64*"]
    assert text[3].split()[-1] == "1.00"


def test_a_large_shape_is_tried_with_few_rows_and_little_memory() -> None:
    """The output matrix of an 8B model is the largest by far. Its MLP is tried with 512 rows,
    because calls of 128 cost more."""
    config = config_from_dict(PUBLISHED["meta-llama/Meta-Llama-3-8B"])
    shapes = shapes_of(empty_decoder(config, torch.float32), torch.float32)
    assert [max(probe.tried(shape)) for shape in shapes] == [512, 512, 512, 512, 64]


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


def test_every_machine_on_the_page_of_bits_is_described_by_the_commands_json() -> None:
    """docs/bits/ holds what `minise bits --json` prints: no paths, no names of hosts."""
    files = sorted((ROOT / "docs" / "bits").glob("*.json*"))
    assert files
    for path in files:
        for line in path.read_text(encoding="utf-8").splitlines():
            report = json.loads(line)
            assert set(report) - {"model", "shape"} == FACTS, path
            assert not os.path.isabs(report.get("model", ""))
            for one in report["shapes"]:
                check_shape(one)


@pytest.mark.usefixtures("few")
def test_bits_and_bench_report_the_mode_in_force(
    capsys, monkeypatch: pytest.MonkeyPatch, llama_folder: Path
) -> None:
    monkeypatch.setenv("MKL_CBWR", "AUTO,STRICT")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)  # it would be listed after the mode
    options = ("--model", llama_folder, "--threads", 1)
    bench = ("bench", *options, "--rounds", 1, "--no-peers")
    assert "MKL_CBWR=AUTO,STRICT\n" in run(capsys, "bits", *options)[1]
    assert "MKL_CBWR=AUTO,STRICT\n" in run(capsys, *bench)[1]
    machine = json.loads(run(capsys, *bench, "--json")[1])["machine"]
    assert machine["environment"]["MKL_CBWR"] == "AUTO,STRICT"
    assert machine["threads"] == torch.get_num_threads()


def test_results_report_the_mode_in_force(monkeypatch: pytest.MonkeyPatch) -> None:
    """What `identity.machine` says stands in results.json, and in run.json to compare with."""
    monkeypatch.setenv("MKL_CBWR", "AUTO,STRICT")
    machine = identity.machine()["machine"]
    assert set(machine) == {"cpu", "instructions", "torch", "environment"}
    assert machine["environment"]["MKL_CBWR"] == "AUTO,STRICT"


@pytest.mark.parametrize("command", ["ask", "bench"])
def test_threads_are_set_before_numbers_of_rows_are_measured(
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
    options = ("--model", llama_folder) if command == "ask" else ()
    assert run(capsys, command, *options, "--threads", 3)[0] == 2
    assert order == ["3 threads", "probed"]
