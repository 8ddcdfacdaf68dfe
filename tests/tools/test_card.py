"""The command for a lent card, tried on a CPU as its stand-in."""

from __future__ import annotations

import json
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from minise import pack
from minise.bench.workloads import WORKLOADS
from minise.exact.probe import NUMBERS
from tools import card, card_peers
from tools.card import GOALS, SECONDS, STAGES, kernel_calls, layer_shapes, run_stage

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


def test_the_plan_names_every_kernel_call(capsys: pytest.CaptureFixture[str]) -> None:
    assert card.main(["--dry-run", "--shape", "small"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines == [*kernel_calls("small")]
    qasc = lines[lines.index("qasc: 1,218 tokens in the tree, 40 ends") :]
    lower, top = qasc.index("  layer 1, each:"), qasc.index(next(x for x in qasc if "truth" in x))
    assert qasc[2:9] == [
        f"    {name}: 1,218 x {inputs} x {outputs}"
        for name, inputs, outputs in card.linear_layers("small")
    ]
    # In the top layer only keys and values are computed for all tokens of the tree.
    rows = [line.split()[:2] for line in qasc[lower + 1 : top] if "attention" not in line]
    assert [name for name, number in rows if number == "1,218"] == ["k_proj:", "v_proj:"]
    assert {number for _, number in rows} == {"1,218", "40"}
    assert "attention: " in qasc[lower - 1]
    assert "attention: " in qasc[top - 1]


def test_flexattention_is_given_the_mask_of_the_method() -> None:
    prefix, branches = [5, 6, 7], [[8, 9], [8, 4, 3], [2]]
    layout = pack(prefix, branches)
    rows = card_peers.rows_of(prefix, branches, 1)
    assert rows.positions.equal(layout.positions)
    for size in (1, 4):  # with padding, the same among the rows that hold tokens
        rows = card_peers.rows_of(prefix, branches, size)
        T = len(rows.parts)
        q, k = torch.arange(T)[:, None], torch.arange(T)
        mask = card_peers.block_mask(rows.parts, rows.positions, separate=True).mask_mod
        sees = mask(torch.tensor(0), torch.tensor(0), q, k)
        real = rows.parts >= 0
        assert sees[real][:, real].equal(layout.mask)
        assert sees[~real].sum(dim=1).eq(1).all()
    assert rows.alone(1).tolist() == [0, 1, 2, 3, 8, 9, 10, 11]


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_flexattention_is_compared_with_each_prompt_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(WORKLOADS, "qasc", WORKLOADS["truthfulqa"])  # a third of the prompts
    report = card_peers.flex("cpu", card.SMALL)
    assert len(report["layouts"]) == 5
    for name, one in report["layouts"].items():
        assert one["seconds"] > 0
        assert name == "minise, tree" or one["equal"] == one["tried"] == 3

    def rounded(*args: Tensor, **options: Any) -> Tensor:
        return original(*args, **options) * (1 + args[0].shape[2] / 64)

    original = card_peers.flex_attention
    monkeypatch.setattr(card_peers, "flex_attention", rounded)
    monkeypatch.setattr(card_peers, "time_in_turn", lambda *_: {})
    report = card_peers.flex("cpu", card.SMALL)
    assert [one["equal"] for one in report["layouts"].values()] == [0, 0, 0, 0]


def test_vllm_gets_every_prompt_of_different_questions(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[list[tuple[int, ...]]] = []

    class Stand:
        def __init__(self, folder: str, **options: Any) -> None:
            config = json.loads(Path(folder, "config.json").read_text())
            assert config["hidden_size"] == 64
            assert options["enable_prefix_caching"]

        def generate(self, prompts: list[dict[str, Any]], *_: Any, use_tqdm: bool) -> None:
            calls.append([tuple(prompt["prompt_token_ids"]) for prompt in prompts])

    stand = SimpleNamespace(LLM=Stand, SamplingParams=dict, __spec__=ModuleSpec("vllm", None))
    monkeypatch.setitem(sys.modules, "vllm", stand)  # type: ignore[arg-type]
    report = card_peers.vllm("cuda", card.SMALL, {"truthfulqa": 100}, per_pass=1200)
    assert len(calls) == card_peers.ROUNDS + 1
    assert {len(call) for call in calls} == {2 * 12}
    prompts = [prompt for call in calls for prompt in call]
    prefix, branches, _ = WORKLOADS["truthfulqa"].prompts(card.SMALL["vocab_size"], 0)
    assert len({prompt[: len(prefix)] for prompt in prompts}) == 2 * len(calls)
    assert prompts[0] == (*prefix, *branches[0])
    assert report["workloads"]["truthfulqa"]["questions_per_second"] > 0
    assert card_peers.vllm("cpu", card.SMALL, {}, 1)["summary"].startswith("skipped")
