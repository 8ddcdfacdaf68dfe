"""`minise verify` on a model of the transformers library: what it prints, and its exit status."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("transformers", reason="the reference library, extra [parity], is missing")

from tests.support.bridges import make_model, make_reader
from tests.support.commands import run


def test_the_broken_promise_is_named_and_the_status_is_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_model("mistral").save_pretrained(tmp_path)
    make_reader().save_pretrained(tmp_path)
    model = ("--model", f"transformers:{tmp_path}", "--trials", 2)
    status, out, err = run(capsys, "verify", *model, "--gradients")
    assert (status, err) == (1, "")
    assert out.endswith("FAILED: window\n")
    status, out, _ = run(capsys, "verify", *model, "--json", "--gradients")
    printed = json.loads(out)
    assert status == 1
    assert printed["passed"] is False
    assert list(printed["promises"]) == ["mask", "positions", "window", "cache", "batch"]
    assert printed["promises"]["window"]["holds"] is False
    assert printed["influence"]["scrambled_equal"] is True
    assert printed["influence"]["gradient_outside"] == 0.0
    assert printed["engines"]["dense"]["exact"]
    assert printed["attention"] == "sdpa"


def test_equal_bits_can_be_required_only_of_minise_models(
    capsys: pytest.CaptureFixture[str], llama_folder: Path
) -> None:
    folder = f"transformers:{llama_folder}"
    status, out, err = run(capsys, "verify", "--model", folder, "--require-bits")
    assert (status, out) == (2, "")
    assert "--require-bits is for minise's own models" in err
