"""`minise verify`: what it prints, and its exit status."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

import minise.checking.comparison as comparison
import minise.checking.verify as verify_module
import minise.engines as engines
from minise import InputError
from minise.exact.machine import facts, processor
from tests.support.commands import run


@pytest.fixture
def noise(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Label logits of the tree engine that are off by a constant share."""

    def put(share: float) -> None:
        real = comparison.label_logits

        def label_logits(lm: Any, plan: Any, engine: str) -> list[torch.Tensor]:
            rows = real(lm, plan, engine)
            return [row * (1 + share) for row in rows] if engine == "tree" else rows

        monkeypatch.setattr(comparison, "label_logits", label_logits)

    return put


@pytest.fixture
def unpromised(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device for which no promise about bits is known."""
    monkeypatch.setattr(verify_module, "is_refined", lambda decoder: False)
    device_facts = {"device": "cuda:0 (a GPU)", **facts(), "threads": 1}
    monkeypatch.setattr(verify_module, "machine", lambda device: device_facts)


def verified(capsys: pytest.CaptureFixture[str], folder: Any, *options: object) -> tuple[int, Any]:
    status, out, err = run(capsys, "verify", "--model", folder, "--trials", 1, *options)
    assert err == ""
    return status, json.loads(out) if "--json" in options else out


def test_json_has_the_keys_of_the_contract(capsys, llama_folder) -> None:
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
        "float64",
        "ablations",
        "bitwise",
        "promised",
        "influence",
        "machine",
    }
    assert report["dtype"] == "float64"
    assert report["passed"] is True
    assert report["tolerance"] == 1e-10
    assert list(report["engines"]) == ["dense", "tree", "plain"]
    for engine, difference in report["engines"].items():
        assert set(difference) == {"layers", "logits", "labels", "probabilities", "changed"}
        assert len(difference["layers"]) == 4
        assert max(difference["layers"]) < 1e-10
        assert difference["labels"] < 1e-10
        if engine != "plain":
            assert difference["layers"] == [0.0] * 4
            assert difference["logits"] == difference["probabilities"] == 0
    assert report["float64"] == {}  # the model computes in it
    assert report["promised"] is True
    assert report["machine"] == {"device": "cpu", **facts(), "threads": torch.get_num_threads()}
    for ablation in ("without_mask", "without_positions"):
        difference = report["ablations"][ablation]
        assert set(difference) == {"logits", "labels", "probabilities", "changed"}
        assert difference["logits"] > 1e-3
    assert report["bitwise"] == {"dense": True, "tree": True}
    assert report["influence"] == {
        "scrambled_equal": True,
        "gradient_outside": None,
        "gradient_inside": None,
    }


def test_json_with_gradients_has_their_results(capsys, llama_folder) -> None:
    status, report = verified(capsys, llama_folder, "--gradients", "--json")
    assert status == 0
    assert report["influence"]["gradient_outside"] == 0.0
    assert report["influence"]["gradient_inside"] > 0.0


def test_text_shows_what_was_proved(capsys, llama_folder) -> None:
    status, out = verified(capsys, llama_folder)
    assert status == 0
    assert out.splitlines()[1].startswith(f"on {processor()}, ")
    for row in ("layer 0", "layer 2", "final norm", "logits"):
        assert re.search(rf"\n  {row} +\S+ to \S+ +1.0e-10 +0.0e\+00 +0.0e\+00 +\d\.\de-1\d ", out)
    assert re.search(r"\n  label logits +\S+ to \S+ +1.0e-10( +\d\.\de[-+]\d\d){5}\n", out)
    assert "without mask" in out
    assert "without positions" in out
    assert re.search(r"\n  equal bit for bit +yes +yes +no +no +no\n", out)
    assert "in float64" not in out
    assert re.search(r"\nInfluence: \d+ packed runs", out)
    assert "\n  Its hidden states stay equal bit for bit: yes\n" in out
    assert "Gradients" not in out
    equal = f"passed: separate, dense and tree are equal bit for bit on {processor()}; "
    assert out.endswith(equal + "no group sees another\n")


def test_text_with_gradients_names_their_result(capsys, llama_folder) -> None:
    _, out = verified(capsys, llama_folder, "--gradients")
    assert "\nGradients of the last hidden state of groups 0, 1, by each token\n" in out
    assert "\n  that the group must not see: at most 0.0e+00 (must be 0)\n" in out
    assert re.search(r"\n  that it sees: at least [1-9].\de-\d\d \(must be above 0\)\n", out)


def test_with_one_group_influence_is_not_tested(capsys, llama_folder) -> None:
    status, out = verified(capsys, llama_folder, "--group-size", 8)
    assert status == 0
    assert "\nInfluence: there is one group" in out


@pytest.mark.usefixtures("unpromised")
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


@pytest.mark.usefixtures("unpromised")
def test_agreement_within_rounding_is_reported_as_such(capsys, llama_folder, noise) -> None:
    noise(1e-14)
    status, out = verified(capsys, llama_folder)
    assert status == 0
    assert out.splitlines()[1].startswith(f"on cuda:0 (a GPU), beside {processor()}, ")
    assert re.search(r"\n  equal bit for bit +yes +no +no +no +no\n", out)
    agree = "passed: packed and separate agree within what is allowed; "
    assert out.endswith(f"{agree}equal bits are not promised on cuda:0 (a GPU)\n")
    status, out = verified(capsys, llama_folder, "--require-bits")
    assert status == 1
    required = "FAILED: bits differ, and --require-bits is given (none are promised on "
    assert out.endswith(f"{required}cuda:0 (a GPU))\n")


@pytest.mark.usefixtures("unpromised")
def test_equal_bits_without_a_promise_are_reported_as_not_promised(capsys, llama_folder) -> None:
    for more in ([], ["--require-bits"]):
        status, out = verified(capsys, llama_folder, *more)
        assert status == 0
        assert "equal bit for bit on cuda:0 (a GPU), where it is not promised; no group" in out


@pytest.mark.parametrize("more", [[], ["--tolerance", 1e-3], ["--require-bits"]])
def test_promised_bits_that_differ_are_a_failure(capsys, llama_folder, noise, more) -> None:
    """Also if the difference is smaller than rounding."""
    noise(1e-14)
    status, out = verified(capsys, llama_folder, *more)
    assert status == 1
    kernels = "FAILED: bits differ, although the kernels of this machine give equal bits"
    assert out.endswith(f"{kernels} ({processor()})\n")


def test_a_fault_that_only_float64_shows_is_a_failure(
    capsys, llama_folder, noise, unpromised
) -> None:
    noise(1e-5)
    status, out = verified(capsys, llama_folder, "--dtype", "bfloat16")
    assert status == 1
    assert re.search(r"\n  all of it in float64 +2 prompts +1.0e-10( +\d\.\de-\d\d){3}\n", out)
    assert "FAILED: in float64 a packed run differs" in out


def test_plain_runs_fewer_prompts_if_the_scores_of_all_would_not_fit(
    capsys, llama_folder, monkeypatch
) -> None:
    """The engine plain, which holds them at once, runs some of the prompts."""
    real = engines.check_mask_fits

    def check(tokens: int, scores: int = 0) -> None:
        if scores and tokens > 500:
            raise InputError("the scores do not fit")
        real(tokens, scores)

    monkeypatch.setattr(engines, "check_mask_fits", check)
    status, out = verified(capsys, llama_folder, "--trials", 5)
    assert status == 0
    assert "\nplain ran 5 of the prompts, because the scores of all would not fit.\n" in out
    status, out = verified(capsys, llama_folder)
    assert status == 0
    assert "plain ran" not in out


def test_a_question_that_shows_nothing_is_a_failure(capsys, llama_folder) -> None:
    status, out = verified(capsys, llama_folder, "--tolerance", 1e9)
    assert status == 1
    assert "FAILED: this question shows nothing" in out


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_narrower_dtypes_pass(capsys, llama_folder, dtype) -> None:
    status, report = verified(capsys, llama_folder, "--dtype", dtype, "--json")
    assert status == 0
    assert report["tolerance"] > 1e-10
    assert report["bitwise"] == {"dense": True, "tree": True}


@pytest.mark.parametrize("kind", [(), ("--proof",), ("--training",)])
def test_the_verdict_is_green_or_red_where_colours_are_on(capsys, llama_folder, kind) -> None:
    command = ("verify", "--model", llama_folder, "--trials", "2", *kind)
    status, plain, _ = run(capsys, *command)
    assert "\x1b" not in plain
    _, coloured, _ = run(capsys, *command, "--color", "always")
    word = re.search(r"^(passed|proved|FAILED)", plain, re.MULTILINE)
    assert coloured.count("\x1b[") == 2
    assert f"\x1b[{31 if status else 32}m{word[0]}\x1b[0m" in coloured
    _, text, _ = run(capsys, *command, "--json", "--color", "always")
    assert "\x1b" not in text
