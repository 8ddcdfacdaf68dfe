"""`minise verify --training`: what it prints, and its exit status."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import minise.checking.training as training
from tests.support.commands import run

OPTIONS = ("--training", "--group-size", 4, "--trials", 1)


def test_text_and_json_say_how_far_the_gradients_are_apart(
    capsys: pytest.CaptureFixture[str], llama_folder: Path
) -> None:
    status, out, err = run(capsys, "verify", "--model", llama_folder, *OPTIONS)
    assert (status, err) == (0, "")
    assert "of 2 group prompts, each with a weight of its own," in out
    assert "\n  dense  gradients differ by at most " in out
    assert "\n  tree   gradients differ by at most " in out
    assert out.endswith("\npassed: all within 1e-12\n")
    status, out, _ = run(capsys, "verify", "--model", llama_folder, *OPTIONS, "--json")
    report = json.loads(out)
    assert status == 0
    assert report["passed"] is True
    assert report["tolerance"] == 1e-12
    assert set(report["largest"]) == set(report["losses"]) == {"dense", "tree"}
    assert max(report["largest"].values()) <= 1e-12


def test_gradients_that_differ_are_status_1(
    capsys: pytest.CaptureFixture[str], llama_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = training._terms
    monkeypatch.setattr(training, "_terms", lambda *given: real(*given)[1:])
    status, out, _ = run(capsys, "verify", "--model", llama_folder, *OPTIONS)
    assert status == 1
    assert out.endswith("a packed pass does not train as its prompts do\n")


@pytest.mark.parametrize("more", [["--dtype", "float32"], ["--quantize", "nf4"], ["--gradients"]])
def test_options_without_a_meaning_beside_it_are_refused(
    capsys: pytest.CaptureFixture[str], llama_folder: Path, more: list[str]
) -> None:
    status, out, err = run(capsys, "verify", "--model", llama_folder, "--training", *more)
    assert (status, out) == (2, "")
    assert err.count("\n") == 1
    assert f"--training is a check of its own; leave {' '.join(more)[:10]}" in err
