"""`minise verify` with --equal-bits and --proof, and of a model of another library."""

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from minise import LabelLogits, LocalModel
from minise.lab.equal_bits import probe
from minise.lab.equal_bits.probe import Shape
from minise.lab.proof.bits import measure_bits
from tests.reference.verify.planted import PLANTED
from tests.reference.verify.test_commands import Capture, verified


@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
def test_with_equal_bits_json_says_that_they_are_and_why(
    capsys: Capture, llama_folder: Path, monkeypatch: pytest.MonkeyPatch, dtype: str
) -> None:
    """The classes of this machine's row numbers, and what a call of each costs."""
    monkeypatch.setattr(probe, "NUMBERS", (1, 2, 8))
    monkeypatch.setattr("minise.lab.proof.bits.CALLS", 1)
    options = ("--dtype", dtype, "--equal-bits")
    status, report = verified(capsys, llama_folder, *options, "--json")
    assert status == 0
    assert report["bitwise"] == {"packed": True, "tree": True}
    assert report["influence"]["scrambled_equal"] is True
    for numbers in report["engines"].values():
        assert not any([*numbers["layers"], numbers["logits"], numbers["labels"]])
        assert numbers["probabilities"] == 0
    assert len(report["bits"]) == 5  # four kinds of layer, and the output matrix
    for one in report["bits"]:
        assert set(one) == {"layer", "classes", "chosen", "microseconds"}
        assert one["chosen"] in one["classes"]
        assert list(one["microseconds"]) == ["1", "2", "8"]
    _, out = verified(capsys, llama_folder, *options)
    assert "separate, packed and tree are equal bit for bit; no group sees another\n" in out
    assert f"\n{dtype} 32 x 288, threads 1\n" in out


def test_a_last_bit_is_a_failure_where_equal_bits_are_promised(
    capsys: Capture, llama_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = LocalModel.logits
    noise = {"tree": 1 + 1e-14}

    def logits(self: LocalModel, prompts: Any) -> list[LabelLogits]:
        factor = noise.get(self.engine, 1)
        return [LabelLogits(one.labels * factor, one.total) for one in real(self, prompts)]

    monkeypatch.setattr(LocalModel, "logits", logits)
    monkeypatch.setattr(probe, "NUMBERS", (1, 2, 8))
    status, out = verified(capsys, llama_folder, "--equal-bits")
    assert status == 1
    assert "\nFAILED: bits differ, and equal bits are promised\n" in out


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
    assert [*report["departures"]] == ["tree", "tree, equal bits"]


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
    assert bits.classes == [[1, 2, 4, 64], [8, 32]]
    assert bits.chosen == (1, 2, 4, 64)
    assert list(bits.microseconds) == [1, 2, 4, 8, 16, 32, 64]  # 16 is in no class
    assert str(bits).splitlines()[1].endswith(" us)  <- in use")


def test_a_model_of_transformers_is_compared_by_its_logits(
    capsys: Capture, llama_folder: Path
) -> None:
    transformers = pytest.importorskip("transformers")
    transformers.utils.logging.disable_progress_bar()
    status, report = verified(capsys, f"transformers:{llama_folder}", "--json")
    assert (status, report["float64"], report["definition"]) == (0, {}, None)
    assert 0 < report["tolerance"] < 1e-3
    assert report["engines"]["packed"]["layers"] == []
    assert report["engines"]["packed"]["logits"] < 1e-4
    status, out = verified(capsys, f"transformers:{llama_folder}")
    assert re.search(r"\n  tree +- .* - +the same\n", out)
