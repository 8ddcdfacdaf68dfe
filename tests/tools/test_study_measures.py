"""A row has all measures of a cell; a difference has its losses beside its accuracy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from minise.files import json_text
from tests.support.results import DIFFERENCE, cell, make
from tools.studies.measures import main

NLL = {"nll": -0.1, "nll_interval": [-0.2, 0.0], "nll_matched": None}


def test_measures_and_differences_of_finished_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks: dict[str, Any] = {
        "q": {"standard": cell(over_confidence=None), "cloze": cell("cloze", nll=1.25)}
    }
    differences = {"q": [{**DIFFERENCE, **NLL, "a": "cloze", "b": "standard"}]}
    raw = make(None, tasks, differences=differences, model="weights/tiny")
    (tmp_path / "results.json").write_text(json_text(raw), encoding="utf-8")
    monkeypatch.setattr("sys.argv", ["measures", str(tmp_path)])
    main()
    head, _, standard, cloze, _, under, _, lead = capsys.readouterr().out.splitlines()
    share, loss = "80.0 [70.0, 90.0]", "0.800 [0.700, 0.900]"
    assert head.startswith("| model | task | method | accuracy | NLL | matched NLL | Brier | ECE |")
    assert standard == f"| tiny | q | standard | {share} |{f' {loss} |' * 5} {share} | - |"
    other = f"1.250 [0.700, 0.900] |{f' {loss} |' * 4}"
    assert cloze == f"| tiny | q | cloze | {share} | {other} {share} | {share} |"
    assert under == "| model | task | difference | accuracy | NLL | matched NLL |"
    gain, less = "+5.0 [-1.0, +11.0]", "-0.100 [-0.200, +0.000]"
    assert lead == f"| tiny | q | cloze - standard | {gain} | {less} | - |"
