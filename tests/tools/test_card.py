"""The command for a lent card, tried on a CPU as its stand-in."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from minise.exact.probe import NUMBERS
from tools import card
from tools.card import GOALS, SECONDS, STAGES, layer_shapes, run_stage

CPU = ("cpu", "small")


def test_all_stages_fit_into_ten_minutes() -> None:
    assert STAGES.keys() == SECONDS.keys()
    assert sum(SECONDS.values()) <= 600


def test_each_layer_of_the_shape_is_tried_once() -> None:
    # Query and output are alike, so are key and value, and gate and up.
    sizes = [(one.inputs, one.outputs) for one in layer_shapes("small")]
    assert sizes == [(64, 64), (64, 32), (64, 96), (96, 64)]


def test_bits_names_the_classes_of_each_layer_and_what_a_call_costs() -> None:
    report = card.bits(*CPU)
    assert len(report["layers"]) == 4
    for layer in report["layers"]:
        members = [n for one in layer["classes"] for n in one]
        assert len(members) == len({*members})
        assert {*map(str, members)} <= layer["microseconds"].keys()
        assert {*map(str, NUMBERS)} <= layer["microseconds"].keys()


@pytest.mark.parametrize("stage", ["cost", "building", "graph"])
def test_each_workload_has_its_seconds(stage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(card.GOALS, "biology")  # most of the time
    report = STAGES[stage](*CPU)
    assert report["workloads"].keys() == GOALS.keys()
    for one in report["workloads"].values():
        assert all(seconds > 0 for seconds in one["seconds"].values())
        assert one.get("equal", True)
    assert all(name in report["summary"] for name in GOALS)


def test_bench_compares_questions_a_second_with_the_goals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(card, "GOALS", {"truthfulqa": 100})
    monkeypatch.setattr(card, "PER_PASS", 1200)
    monkeypatch.setattr("minise.bench.measure.library_model", lambda decoder: None)
    (one,) = card.bench(*CPU)["workloads"].values()
    assert one["goal"] == 100
    rates = {row["name"]: 1 / row["seconds"] for row in one["rows"]}
    assert "tree, 2 questions a pass" in rates
    best = max(rate for name, rate in rates.items() if name.startswith("tree"))
    assert one["questions_per_second"] == pytest.approx(best, rel=0.01)


def test_a_stage_that_fails_or_hangs_takes_no_other_along(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path, results = tmp_path / "card.json", {"bits": {"seconds": 1.0}}

    def stage(name: str, *_: str) -> dict[str, Any]:
        if name == "bench":
            assert "bits" in json.loads(path.read_text())["stages"]  # written before the next
            return {"failed": "status 1: out of memory", "seconds": 2.0}
        return results.get(name, {"summary": "done", "seconds": 3.0})

    monkeypatch.setattr(card, "run_stage", stage)
    command = ["card.py", "--output", str(path), "--device", "cpu", "--stages", "bits,bench,graph"]
    monkeypatch.setattr(sys, "argv", command)
    assert card.main() == 1
    report = json.loads(path.read_text())
    assert [*report["stages"]] == ["bits", "bench", "graph"]
    assert "bench: status 1: out of memory\ngraph: done\n" in capsys.readouterr().out


def test_a_stage_runs_in_a_process_with_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    assert card.tests(*CPU)["summary"] == "skipped: no CUDA device"
    assert "status 1" in run_stage("bits", "no-device", "small")["failed"]
    monkeypatch.setitem(SECONDS, "tests", 0.01)
    assert run_stage("tests", *CPU)["failed"] == "took more than 0.01 seconds"
