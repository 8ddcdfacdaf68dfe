"""Numbers of trials are compared with the limit of their own group size, and the limits with each
other."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("scipy")

from minise.evaluation.samples import append_lines, samples_path
from minise.files import json_text
from minise.methods.sample import Sample
from tests.support.results import cell, make
from tools.studies.sensitivity import main


def samples(right: int) -> list[Sample]:
    """Ten questions of five facts; so many of the first are answered rightly."""
    made = []
    for number in range(10):
        p = [0.9, 0.1] if number < right else [0.1, 0.9]
        best, fact = p.index(0.9), f"fact {number // 2}"
        made.append(Sample(str(number), 0, "hash", 0, best, p, p, 9, cluster=fact))
    return made


def test_each_number_of_trials_is_compared_with_its_limit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    right = {"m2-n1": 6, "m2-n5": 10, "m2-exact": 10, "m5-n1": 2, "m5-n5": 4}
    for name, count in right.items():
        append_lines(samples_path(tmp_path, "q", name), [one.line() for one in samples(count)])
    tasks = {"q": {name: cell("self-ensemble") for name in right}}
    raw = make("sensitivity", tasks, model="weights/tiny")
    (tmp_path / "results.json").write_text(json_text(raw), encoding="utf-8")
    monkeypatch.setattr("sys.argv", ["sensitivity", str(tmp_path)])
    main()
    head, _, m2, m5, _, limits, _, lead = capsys.readouterr().out.splitlines()
    assert head == "| model | group size | N=1 | N=5 |"
    assert m2 == "| tiny | m=2 | -40.0 [-80.0, +0.0] | +0.0 [+0.0, +0.0] |"
    assert m5 == "| tiny | m=5 | -20.0 [-60.0, +0.0] | - |"  # its largest N is its limit
    assert limits == "| model | m=5 - m=2 |"
    assert lead == "| tiny | -60.0 [-100.0, -20.0] |"
