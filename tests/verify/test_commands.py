"""`minise verify`: what it prints, and its exit status."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import minise.verify.comparison as comparison
import minise.verify.training as training
from minise.equal_bits import probe
from minise.equal_bits.machine import facts, processor
from minise.equal_bits.probe import Shape
from minise.verify.bits import as_lines, measure_bits
from tests.support.commands import assert_one_line, run
from tests.verify.planted import PLANTED

RUNS = ["dense", "tree", "plain", "without_mask", "without_positions"]
Capture = pytest.CaptureFixture[str]


def verified(capsys: Capture, folder: Path, *options: object) -> tuple[int, Any]:
    status, out, err = run(capsys, "verify", "--model", folder, "--trials", 1, *options)
    assert err == ""
    return status, json.loads(out) if "--json" in options else out


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
def test_json_has_the_keys_of_the_contract(capsys: Capture, llama_folder: Path, dtype: str) -> None:
    status, report = verified(capsys, llama_folder, "--dtype", dtype, "--json")
    assert status == 0
    known = "model dtype tokens groups tolerance passed engines ablations float64 same bitwise"
    assert set(report) == {*known.split(), "promised", "influence", "machine"}
    assert (report["dtype"], report["passed"], report["tolerance"]) == (dtype, True, 1e-10)
    assert [*report["engines"], *report["ablations"]] == RUNS == list(report["float64"])
    for name, numbers in (report["engines"] | report["ablations"]).items():
        assert set(numbers) == {"layers", "logits", "labels", "probabilities", "changed"}
        assert len(numbers["layers"]) == 4
        if name in ("dense", "tree"):
            assert not any([*numbers["layers"], numbers["logits"], numbers["labels"]])
    assert report["same"] == {name: "without" not in name for name in RUNS}
    assert min(report["float64"][name] for name in RUNS[3:]) > 1e-3
    assert report["bitwise"] == {"dense": True, "tree": True}
    assert report["influence"].keys() == {"runs", "scrambled_equal"}
    assert report["influence"]["scrambled_equal"] is True
    assert report["machine"] == {"device": "cpu", **facts(), "threads": torch.get_num_threads()}


def test_the_text_has_the_verdict_of_float64_beside_each_run(capsys: Capture, llama_folder) -> None:
    status, out = verified(capsys, llama_folder, "--dtype", "bfloat16")
    assert status == 0
    assert out.splitlines()[1].startswith(f"on cpu: {processor()}, ")
    number = r" +\d\.\de[-+]\d\d"
    for name in ("dense", "tree"):
        assert re.search(rf"\n  {name}( +0\.0e\+00){{3}} +0% +yes +0\.0e\+00 +the same\n", out)
    assert re.search(rf"\n  plain({number}){{3}} +\d+% +no +\d\.\de-1\d +the same\n", out)
    for name in ("without mask", "without positions"):
        assert re.search(rf"\n  {name}({number}){{3}} +\d+% +no{number} +different\n", out)
    assert re.search(rf"\n  rounding({number}){{3}} +\d+% +no{number} +allowed\n", out)
    assert out.endswith("bit for bit; no group sees another\n")


def test_a_failed_check_is_status_1(capsys: Capture, llama_folder: Path, monkeypatch) -> None:
    real = comparison.label_logits
    noise = {"tree": 1 + 1e-14}
    monkeypatch.setattr(
        comparison,
        "label_logits",
        lambda lm, plan, name: [row * noise.get(name, 1) for row in real(lm, plan, name)],
    )
    status, out = verified(capsys, llama_folder)
    assert status == 1
    assert out.endswith("FAILED: bits differ, and they are promised here\n")


def test_a_proof_reads_no_weights_and_names_the_first_difference(
    capsys: Capture, llama_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("config.json", "tokenizer.json"):
        shutil.copy(llama_folder / name, tmp_path)
    status, out = verified(capsys, tmp_path, "--proof")
    assert status == 0
    assert "proved for all weights of this shape" in out
    PLANTED["the last token's position in the tree is off by one"](monkeypatch)
    status, out = verified(capsys, tmp_path, "--proof")
    assert status == 1
    assert re.search(
        r"FAILED: tree differs first in layer 0, branch 1, token [0-9]+$", out, re.MULTILINE
    )
    status, report = verified(capsys, tmp_path, "--proof", "--json")
    assert (status, report["passed"]) == (1, False)
    assert [*report["departures"]] == ["tree"]


def test_training_says_how_far_the_gradients_are_apart(
    capsys: Capture, llama_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    status, out = verified(capsys, llama_folder, "--training")
    assert (status, out.count("of a tensor's largest entry")) == (0, 2)
    assert out.endswith("\npassed: all within 1e-12\n")
    real = training.packed_loss
    monkeypatch.setattr(training, "packed_loss", lambda *given: 2 * real(*given))
    status, report = verified(capsys, llama_folder, "--training", "--json")
    assert (status, report["passed"]) == (1, False)


def test_bits_are_the_classes_of_this_machines_kernels_and_their_costs(
    capsys: Capture, llama_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe, "NUMBERS", (1, 2, 8))
    monkeypatch.setattr("minise.verify.bits.CALLS", 1)
    status, report = verified(capsys, llama_folder, "--bits", "--json")
    assert (status, len(report["bits"])) == (0, 5)  # four kinds of layer, and the output matrix
    for one in report["bits"]:
        assert set(one) == {"layer", "classes", "chosen", "microseconds"}
        assert one["chosen"] in one["classes"]
        assert list(one["microseconds"]) == ["1", "2", "8"]
    _, out = verified(capsys, llama_folder, "--bits")
    assert "\nfloat64 32 x 288, threads 1\n" in out


def test_the_classes_are_those_of_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine on which 8 and 32 rows are summed backwards, and 16 by the place of the row."""
    real = torch.nn.functional.linear

    def linear(x: torch.Tensor, weight: torch.Tensor, bias: Any = None) -> torch.Tensor:
        if len(x) == 16:
            return torch.cat([linear(x[:8], weight), real(x[:8], weight)])
        if len(x) in (8, 32):
            return real(x.flip(-1).double(), weight.flip(-1).double()).to(x.dtype)
        return torch.cat([real(x[i : i + 1], weight) for i in range(len(x))])

    monkeypatch.setattr(torch.nn.functional, "linear", linear)
    monkeypatch.setattr(probe, "NUMBERS", (1, 2, 4, 8, 16, 32, 64))
    bits = measure_bits(Shape(64, 48, False, torch.float32, 1))
    assert bits["classes"] == [[1, 2, 4, 64], [8, 32]]
    assert bits["chosen"] == (1, 2, 4, 64)
    assert list(bits["microseconds"]) == [1, 2, 4, 8, 16, 32, 64]  # 16 is in no class
    assert as_lines(bits).splitlines()[1].endswith(" us)  <- in use")


@pytest.mark.parametrize(
    "options", ["--proof --training", "--training --require-bits", "--group-size 0"]
)
def test_unusable_options_are_one_line(capsys: Capture, options: str) -> None:
    assert_one_line(*run(capsys, "verify", *options.split()), [options.split()[0]])
