"""`minise verify`: what it prints, and its exit status."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

import minise.verify as verify_module
from tests.commands import run


@pytest.fixture
def noise(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Logits of the tree engine that are off by a constant share."""

    def put(share: float) -> None:
        real = verify_module.branch_logits

        def branch_logits(lm: Any, prefix: Any, branches: Any, engine: str) -> torch.Tensor:
            logits = real(lm, prefix, branches, engine)
            return logits * (1 + share) if engine == "tree" else logits

        monkeypatch.setattr(verify_module, "branch_logits", branch_logits)

    return put


def verified(capsys: pytest.CaptureFixture[str], folder: Any, *options: object) -> tuple[int, Any]:
    status, out, err = run(capsys, "verify", "--model", folder, "--trials", 1, *options)
    assert err == ""
    return status, json.loads(out) if "--json" in options else out


def test_json_is_the_contracts(capsys, llama_folder) -> None:
    status, report = verified(capsys, llama_folder, "--json")
    assert status == 0
    assert set(report) == {
        "model",
        "dtype",
        "tokens",
        "groups",
        "tolerance",
        "passed",
        "engines",
        "ablations",
        "bitwise",
        "influence",
    }
    assert report["dtype"] == "float64"
    assert report["passed"] is True
    assert report["tolerance"] == 1e-10
    for engine in ("dense", "tree"):
        difference = report["engines"][engine]
        assert set(difference) == {"layers", "logits", "probabilities", "changed"}
        assert difference["layers"] == [0.0] * 4
        assert difference["logits"] == difference["probabilities"] == 0
    for ablation in ("without_mask", "without_positions"):
        difference = report["ablations"][ablation]
        assert set(difference) == {"logits", "probabilities", "changed"}
        assert difference["logits"] > 1e-3
    assert report["bitwise"] == {"dense": True, "tree": True}
    assert report["influence"] == {
        "scrambled_equal": True,
        "gradient_outside": None,
        "gradient_inside": None,
    }


def test_json_with_gradients(capsys, llama_folder) -> None:
    status, report = verified(capsys, llama_folder, "--gradients", "--json")
    assert status == 0
    assert report["influence"]["gradient_outside"] == 0.0
    assert report["influence"]["gradient_inside"] > 0.0


def test_text_shows_what_was_proved(capsys, llama_folder) -> None:
    status, out = verified(capsys, llama_folder)
    assert status == 0
    for row in ("layer 0", "layer 2", "final norm", "logits"):
        assert re.search(rf"\n  {row} +\S+ to \S+ +1.0e-10 +0.0e\+00 ", out)
    assert "without mask" in out
    assert "without positions" in out
    assert re.search(r"\n  equal bit for bit +yes +yes +no +no\n", out)
    assert re.search(r"\nInfluence: \d+ packed runs", out)
    assert "\n  Its hidden states stay equal bit for bit: yes\n" in out
    assert "Gradients" not in out
    verdict = "passed: packed and separate are equal bit for bit, and no group sees another\n"
    assert out.endswith(verdict)


def test_text_with_gradients(capsys, llama_folder) -> None:
    _, out = verified(capsys, llama_folder, "--gradients")
    assert "\nGradients of the last hidden state of groups 0, 1, by each token\n" in out
    assert "\n  that the group must not see: at most 0.0e+00 (must be 0)\n" in out
    assert re.search(r"\n  that it sees: at least [1-9].\de-\d\d \(must be above 0\)\n", out)


def test_one_group_has_no_other(capsys, llama_folder) -> None:
    status, out = verified(capsys, llama_folder, "--group-size", 8)
    assert status == 0
    assert "\nInfluence: there is one group" in out


def test_a_difference_beyond_the_tolerance_is_status_1(capsys, llama_folder, noise) -> None:
    noise(1e-6)
    options = ("--dtype", "float32", "--tolerance")
    status, out = verified(capsys, llama_folder, *options, 1e-12)
    assert status == 1
    assert out.endswith(
        "FAILED: a packed run differs from the separate runs by more than is allowed\n"
    )
    assert "absolute" in out
    status, out = verified(capsys, llama_folder, *options, 1e-3)
    assert status == 0


def test_agreement_within_rounding_says_so(capsys, llama_folder, noise) -> None:
    noise(1e-14)
    status, out = verified(capsys, llama_folder)
    assert status == 0
    assert re.search(r"\n  equal bit for bit +yes +no +no +no\n", out)
    assert out.endswith(
        "passed: packed and separate agree within what is allowed, though not bit for bit\n"
    )


def test_a_question_that_shows_nothing(capsys, llama_folder) -> None:
    status, out = verified(capsys, llama_folder, "--tolerance", 1e9)
    assert status == 1
    assert "FAILED: this question shows nothing" in out


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_narrower_dtypes_pass(capsys, llama_folder, dtype) -> None:
    status, report = verified(capsys, llama_folder, "--dtype", dtype, "--json")
    assert status == 0
    assert report["tolerance"] > 1e-10
    assert report["bitwise"] == {"dense": True, "tree": True}
