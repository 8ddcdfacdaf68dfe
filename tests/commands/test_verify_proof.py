"""`minise verify --proof`: what it prints, its exit status, and that it reads no weights."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from minise.checking.proof import ASSUMED
from tests.support.commands import run
from tests.support.planted import PLANTED

OPTIONS = ("--proof", "--group-size", 4, "--trials", 1)


def test_the_text_says_what_is_proved_and_what_is_assumed_without_weights(
    capsys: pytest.CaptureFixture[str], llama_folder: Path, tmp_path: Path
) -> None:
    for name in ("config.json", "tokenizer.json"):
        shutil.copy(llama_folder / name, tmp_path)
    status, out, err = run(capsys, "verify", "--model", tmp_path, *OPTIONS)
    assert (status, err) == (0, "")
    lines = out.splitlines()
    assert " of 2 group prompts, in 3 layers, run on symbols (no weights are read)" in lines[0]
    assert [line.split()[0] for line in lines[2:6]] == ["dense", "tree", "separate", "plain"]
    assert lines[2].endswith(" rows  the operations and calls of a separate run")
    assert lines[4].endswith(" rows  as defined")
    assert "the bits of dense and tree are those of separate. Assumed (docs/proof.md):" in out
    assert lines[-len(ASSUMED) :] == [f"  - {one}" for one in ASSUMED]


def test_a_difference_is_status_1_and_named_in_text_and_json(
    capsys: pytest.CaptureFixture[str], llama_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    PLANTED["the last token's position in the tree is off by one"](monkeypatch)
    status, out, _ = run(capsys, "verify", "--model", llama_folder, *OPTIONS)
    assert status == 1
    failed = out.splitlines()[-1]
    assert failed.startswith("FAILED: tree differs first in layer 0, branch 1, token ")
    assert ": its position is " in failed
    assert "proved" not in out
    status, out, _ = run(capsys, "verify", "--model", llama_folder, *OPTIONS, "--json")
    report = json.loads(out)
    assert status == 1
    assert report["passed"] is False
    assert set(report["first_differences"]) == {"tree"}
    first = report["first_differences"]["tree"]
    assert (first["layer"], first["branch"]) == ("layer 0", 1)
    assert set(report["rows"]) == {"dense", "tree", "separate", "plain"}


@pytest.mark.parametrize(
    "more", [["--gradients"], ["--tolerance", 1], ["--require-bits"], ["--training"]]
)
def test_options_that_compare_numbers_are_refused(
    capsys: pytest.CaptureFixture[str], llama_folder: Path, more: list[object]
) -> None:
    status, out, err = run(capsys, "verify", "--model", llama_folder, "--proof", *more)
    assert (status, out) == (2, "")
    assert err.count("\n") == 1
    assert "is a check of its own; leave " in err
