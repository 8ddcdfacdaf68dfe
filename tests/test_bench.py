"""`minise bench` runs the same prompts every way, checks the numbers and says what it measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from minise import pack
from minise.bench.measure import random_model, time_engines
from minise.bench.plot import plot_growth
from minise.bench.shapes import BENCH_SHAPE, PUBLISHED
from minise.bench.workloads import WORKLOADS, Workload
from minise.cli import main
from minise.meter import peak_bytes
from tests.tiny import FAMILIES

SMALL = Workload(choices=5, group_size=2, trials=3, question=9, choice=4)
CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("name", "prompts", "length"),
    [
        ("qasc", 40, 22 + 4 * (1 + 6) + (1 + 7) + 3),
        ("biology", 80, 60 + 5 * (1 + 18) + (1 + 7) + 3),
        ("longest", 80, 333 + 5 * (1 + 98) + (1 + 7) + 3),
    ],
)
def test_the_fixed_workloads_have_the_stated_lengths(name: str, prompts: int, length: int) -> None:
    prefix, branches, labels = WORKLOADS[name].prompts(32000, seed=0)
    assert len(branches) == prompts
    assert {len(prefix) + len(branch) for branch in branches} == {length}
    assert all(branch[0] == labels[0] for branch in branches)
    # The same choice is the same text wherever it stands, so prefixes merge as real ones do.
    merged, flat = (len(pack(prefix, branches, tree=tree).tokens) for tree in (True, False))
    assert merged < 0.8 * flat


@pytest.mark.parametrize("family", FAMILIES)
def test_every_engine_gives_the_same_logits(family: str) -> None:
    lm = random_model(FAMILIES[family], torch.float64, CPU)
    report = time_engines(lm, SMALL, rounds=1, seed=0, with_peers=False)
    assert [row.name for row in report.rows] == ["separate", "dense", "tree"]
    assert report.floor_seconds > 0
    for row in report.rows:
        assert row.max_difference <= 1e-10
        assert row.seconds > 0
    tokens = [row.tokens for row in report.rows]
    assert tokens == sorted(tokens, reverse=True)


def test_random_weights_are_made_in_the_wanted_dtype_and_the_same_each_time() -> None:
    one, other = (random_model(FAMILIES["llama"], torch.bfloat16, CPU) for _ in range(2))
    for name, tensor in one.decoder.state_dict().items():
        assert tensor.dtype == torch.bfloat16
        assert torch.equal(tensor, other.decoder.state_dict()[name])
    assert one.decoder.model.layers[0].mlp.up_proj.weight.std() > 0.01


def test_the_peak_is_the_memory_a_run_takes() -> None:
    peak, _ = peak_bytes(lambda: torch.ones(50_000_000).sum(), CPU)
    if peak is None:
        pytest.skip("this system does not say")
    assert 190e6 < peak < 260e6


def test_json_is_the_contracts(capsys, llama_folder: Path) -> None:
    status = main(["bench", "--model", str(llama_folder), "--rounds", "1", "--no-peers", "--json"])
    report = json.loads(capsys.readouterr().out)
    assert status == 0
    assert set(report) == {"workload", "device", "dtype", "floor_seconds", "rows"}
    assert report["workload"] == "qasc"
    for row in report["rows"]:
        assert set(row) == {"name", "seconds", "tokens", "peak_bytes", "max_difference"}


def test_text_is_a_table_with_the_floor(capsys, llama_folder: Path) -> None:
    assert main(["bench", "--model", str(llama_folder), "--rounds", "1", "--no-peers"]) == 0
    out = capsys.readouterr().out
    for name in ("separate", "dense", "tree", "floor: linear layers on the tree"):
        assert f"\n{name} " in out


def test_the_growth_is_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    from minise.bench import plot

    monkeypatch.setattr(plot, "TRIALS", (1, 2))
    monkeypatch.setattr(plot, "CHOICES", (3, 4))
    lm = random_model(FAMILIES["llama"], torch.float32, CPU)
    plot_growth(lm, SMALL, 0, tmp_path / "growth.png")
    assert (tmp_path / "growth.png").read_bytes().startswith(b"\x89PNG")


def test_all_published_shapes_and_the_small_one_can_be_built() -> None:
    from minise import Decoder
    from minise.config_json import config_from_dict

    for raw in [BENCH_SHAPE, *PUBLISHED.values()]:
        with torch.device("meta"):
            assert Decoder(config_from_dict(raw))


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["--rounds", "0"], ["--rounds 0"]),
        (["--shape", "gpt-2"], ["--shape", "gpt-2"]),
        (["--workload", "huge"], ["--workload", "huge"]),
        (["--model", "x/y", "--random-weights"], ["--model", "--random-weights"]),
        (["--revision", "main"], ["--revision", "--model"]),
        (["--plot", "no/such/folder/x.png"], ["no/such/folder/x.png", "no such folder"]),
        (["--plot", "x.txt"], ["x.txt", "write .png, .pdf or .svg"]),
    ],
)
def test_unusable_arguments_are_one_line(capsys, arguments, parts) -> None:
    assert main(["bench", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    for part in parts:
        assert part in captured.err
