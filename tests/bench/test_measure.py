"""Every way of running the prompts gives the same logits, and its row says what was measured."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from minise import load
from minise.bench import measure, plot
from minise.bench.measure import Row, Timings, random_model, time_engines, unrefined
from minise.engines import token_counts
from minise.errors import InputError
from minise.names import ENGINES
from tests.support.timed import CPU, LLAMA, SMALL
from tests.support.tiny import FAMILIES


def test_several_questions_in_one_pass_have_the_same_logits_and_divide_the_time() -> None:
    counts = [token_counts(*SMALL.prompts(288, seed)[:2])["tree"] for seed in range(3)]
    most = 3 * counts[0] + 1
    report = time_engines(LLAMA, SMALL, rounds=1, seed=0, with_peers=False, tokens_per_pass=most)
    row = report.rows[-1]
    assert row.name == "tree, 3 questions a pass"
    assert row.max_difference == 0.0
    assert 0.9 * sum(counts) <= 3 * row.tokens <= sum(counts)
    alone = time_engines(LLAMA, SMALL, rounds=1, seed=0, with_peers=False, tokens_per_pass=1)
    assert [row.name for row in alone.rows] == list(ENGINES)
    tree, together = replace(row, name="tree", seconds=0.5), replace(row, seconds=0.25)
    text = Timings(1.0, [tree, together]).as_text()
    assert "questions a second: tree 2.00, tree, 3 questions a pass 4.00." in text


def test_the_table_shows_each_row_beside_the_tree() -> None:
    rows = [Row("separate", 3.0, 1234, None, 0.0), Row("tree", 2.0, 1000, 3 * 2**20, 1e-5)]
    text = Timings(0.5, rows, {"plain": "it is too large"}).as_text()
    cells = [re.split(r"  +", line.strip()) for line in text.splitlines()]
    assert cells[2:6] == [
        ["seconds", "/ tree", "tokens", "peak MiB", "max diff"],
        ["separate", "3.000", "1.50", "1,234", "?", "0.0e+00"],
        ["tree", "2.000", "1.00", "1,000", "3", "1.0e-05"],
        ["floor: linear layers on the tree", "0.500", "0.25", "1,000"],
    ]
    assert "questions a second: tree 0.50." in text
    assert "plain is left out: it is too large." in text
    assert "No peers: no library" in text
    assert "equal bits" not in text
    peer = replace(rows[0], name="library, separate")
    assert "No peers" not in Timings(0.5, [*rows, peer]).as_text()


def test_each_runs_once_to_warm_up_and_then_all_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time of each is the median of its rounds."""
    ran: list[str] = []

    def timed(run: Callable[[], str], device: torch.device) -> float:
        run()
        return [5.0, 1.0, 9.0][ran.count("a") - 2] + (ran[-1] == "b")

    monkeypatch.setattr(measure, "peak_bytes", lambda run, device: (7, run()))
    monkeypatch.setattr(measure, "timed", timed)
    runs = {name: lambda name=name: ran.append(name) or name for name in "ab"}
    measured = measure.time_in_turn(runs, 3, CPU)
    assert ran == [*"abababab"]
    assert measured == {"a": measure.Measured(5.0, 7, "a"), "b": measure.Measured(6.0, 7, "b")}


def test_the_floor_is_of_all_layers_and_a_shared_pass_is_divided(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(measure, "timed", lambda run, device: 6.0)
    report = time_engines(LLAMA, SMALL, 1, 0, with_peers=False, tokens_per_pass=10**3)
    assert report.floor_seconds == 6.0
    *engines, together = report.rows
    assert {row.seconds for row in engines} == {6.0}
    tokens = token_counts(*SMALL.prompts(LLAMA.config.vocab_size, 0)[:2])["tree"]
    assert together.name == f"tree, {10**3 // tokens} questions a pass"
    assert together.seconds == 6.0 / (10**3 // tokens)
    two = time_engines(LLAMA, SMALL, 1, 0, with_peers=False, tokens_per_pass=2 * tokens)
    assert two.rows[-1].name == "tree, 2 questions a pass"


def test_the_floor_and_the_fastest_product_are_told_in_what_they_compute_in_a_second(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(measure, "timed", lambda run, device: 0.5)
    report = time_engines(LLAMA, SMALL, 1, 0, with_peers=False)
    tokens = token_counts(*SMALL.prompts(LLAMA.config.vocab_size, 0)[:2])["tree"]
    weights = [w for w in LLAMA.decoder.model.layers.parameters() if w.dim() == 2]
    assert report.floor_gflops == 2 * sum(w.numel() for w in weights) * tokens / 0.5 / 1e9
    largest = max(w.numel() for w in weights)
    assert report.fastest_gflops == 2 * largest * max(measure.PRODUCT_ROWS) / 0.5 / 1e9
    text = replace(report, floor_gflops=1234.4, fastest_gflops=2000.0).as_text()
    words = "the floor computes 1,234 GFLOP/s, the fastest product of its largest weight 2,000.\n"
    assert words in text


def test_the_floor_runs_every_linear_layer_of_the_model_on_its_tokens() -> None:
    layers, ran = LLAMA.decoder.model.layers, list[tuple[int, ...]]()
    linears = [one for one in layers.modules() if isinstance(one, torch.nn.Linear)]
    hooks = [
        one.register_forward_hook(lambda one, inputs, output: ran.append(tuple(output.shape)))
        for one in linears
    ]
    measure.linear_layers(LLAMA, 5)()
    for hook in hooks:
        hook.remove()
    assert ran == [(5, one.out_features) for one in linears]
    assert len(ran) == 7 * LLAMA.config.num_hidden_layers


@pytest.mark.parametrize("family", FAMILIES)
def test_every_engine_gives_the_same_logits(family: str) -> None:
    lm = random_model(FAMILIES[family], torch.float64, CPU)
    report = time_engines(lm, SMALL, rounds=1, seed=0, with_peers=False)
    assert [row.name for row in report.rows] == list(ENGINES)
    assert report.floor_seconds > 0
    for row in report.rows:
        assert row.max_difference <= 1e-10
        assert row.seconds > 0
    tokens = {row.name: row.tokens for row in report.rows}
    assert tokens["separate"] > tokens["dense"] == tokens["plain"] > tokens["tree"]


@pytest.mark.parametrize("family", FAMILIES)
def test_the_tree_runs_without_equal_bits_on_the_same_tensors(family: str) -> None:
    """One more row of the table, which shows what equal bits cost."""
    lm = random_model(FAMILIES[family], torch.float64, CPU)
    report = time_engines(lm, SMALL, rounds=1, seed=0, with_peers=False, free_rows=True)
    row = report.rows[-1]
    assert [one.name for one in report.rows] == [*ENGINES, "tree, rows in one call"]
    assert row.max_difference <= 1e-10
    assert "as if equal bits were not wanted" in report.as_text()
    free = unrefined(lm.decoder)
    assert type(free.model.layers[0].mlp.up_proj) is torch.nn.Linear
    for name, tensor in lm.decoder.state_dict().items():
        assert free.state_dict()[name].data_ptr() == tensor.data_ptr()


def test_4_bit_weights_cannot_run_without_equal_bits() -> None:
    lm = load("weights/tiny-llama", quantize="nf4")
    with pytest.raises(InputError, match="--free-rows is for weights that are not packed"):
        time_engines(lm, SMALL, rounds=1, seed=0, with_peers=False, free_rows=True)


def test_plain_is_left_out_with_a_note_if_its_scores_do_not_fit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All others run, as they do with the workload longest."""
    packed = token_counts(*SMALL.prompts(288, 0)[:2])["dense"]
    monkeypatch.setattr("minise.engines.free_bytes", lambda _: 2 * packed**2)
    report = time_engines(LLAMA, SMALL, rounds=1, seed=0, with_peers=False)
    assert [row.name for row in report.rows] == [name for name in ENGINES if name != "plain"]
    assert f"plain is left out: {packed} packed tokens need a mask and scores" in report.as_text()
    monkeypatch.setattr(plot, "TRIALS", (1, 2))
    calls, left_out = plot.plan_calls(LLAMA, SMALL, 0, report)
    assert left_out == []
    assert {call.engine for call in calls} == {row.name for row in report.rows}


def test_random_weights_have_the_requested_dtype_and_are_the_same_each_time() -> None:
    one, other = (random_model(FAMILIES["llama"], torch.bfloat16, CPU) for _ in range(2))
    for name, tensor in one.decoder.state_dict().items():
        assert tensor.dtype == torch.bfloat16
        assert torch.equal(tensor, other.decoder.state_dict()[name])
    layer = one.decoder.model.layers[0]
    assert float(layer.mlp.up_proj.weight.std()) == pytest.approx(0.02, rel=0.1)
    assert layer.input_layernorm.weight.eq(1).all()
    assert not any(each.requires_grad for each in one.decoder.parameters())
    assert not one.decoder.training
