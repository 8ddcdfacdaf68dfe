"""`minise verify`: what it prints, and its exit status."""

from __future__ import annotations

import json

import pytest

from tests.commands import run


def test_json_is_the_contracts(capsys, llama_folder) -> None:
    status, out, err = run(capsys, "verify", "--model", llama_folder, "--trials", 2, "--json")
    assert (status, err) == (0, "")
    report = json.loads(out)
    assert set(report) == {
        "model",
        "dtype",
        "tokens",
        "groups",
        "tolerance",
        "passed",
        "engines",
        "ablations",
    }
    assert report["dtype"] == "float64"
    assert report["passed"] is True
    assert report["tolerance"] == 1e-10
    for engine in ("dense", "tree"):
        assert max(report["engines"][engine]["layers"]) <= 1e-10
        assert report["engines"][engine]["probabilities"] <= 1e-12
    for ablation in ("without_mask", "without_positions"):
        assert report["ablations"][ablation]["logits"] > 1e-3


def test_text_has_a_row_a_layer_and_a_verdict(capsys, llama_folder) -> None:
    status, out, _ = run(capsys, "verify", "--model", llama_folder, "--trials", 2)
    assert status == 0
    for row in ("layer 0", "layer 2", "final norm", "logits", "probabilities"):
        assert f"\n  {row} " in out
    assert "without mask" in out
    assert "without positions" in out
    assert out.endswith("passed: packed and separate agree within 1.0e-10\n")


def test_a_difference_beyond_the_tolerance_is_status_1(capsys, llama_folder) -> None:
    status, out, err = run(
        capsys,
        "verify",
        "--model",
        llama_folder,
        "--dtype",
        "float32",
        "--trials",
        2,
        "--tolerance",
        1e-12,
    )
    assert (status, err) == (1, "")
    assert "FAILED" in out


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_narrower_dtypes_pass_within_rounding(capsys, llama_folder, dtype) -> None:
    status, out, _ = run(
        capsys, "verify", "--model", llama_folder, "--dtype", dtype, "--trials", 2, "--json"
    )
    report = json.loads(out)
    assert status == 0
    assert report["tolerance"] > 1e-10
