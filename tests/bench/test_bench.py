"""`minise bench` runs the same prompts every way, checks the numbers and says what it measured."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from minise import load, pack
from minise.bench import generating, plot
from minise.bench.generating import time_generation
from minise.bench.measure import Row, Timings, random_model, time_engines, unrefined
from minise.bench.shapes import BENCH_SHAPE, PUBLISHED
from minise.bench.workloads import WORKLOADS, Workload
from minise.commands.cli import main
from minise.engines import token_counts
from minise.errors import InputError
from minise.evaluation.meter import peak_bytes
from minise.names import ENGINES
from minise.report.drawing import style
from tests.support.commands import assert_one_line, run
from tests.support.tiny import FAMILIES

SMALL = Workload(choices=5, group_size=2, trials=3, question=9, choice=4)
CPU = torch.device("cpu")
LLAMA = random_model(FAMILIES["llama"], torch.float32, CPU)


def timings(workload: Workload = SMALL, **seconds: float) -> Timings:
    """As if the engines had taken so long on the workload."""
    counts = token_counts(*workload.prompts(99, 0)[:2])
    rows = [Row(name, each, counts[name], None, 0.0) for name, each in seconds.items()]
    return Timings(0.0, rows)


@pytest.mark.parametrize(
    ("name", "prompts", "length"),
    [
        ("qasc", 40, 22 + 4 * (1 + 6) + (1 + 7) + 3),
        ("biology", 80, 60 + 5 * (1 + 18) + (1 + 7) + 3),
        ("truthfulqa", 12, 18 + 3 * (1 + 13) + (1 + 7) + 3),
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
    assert merged < 0.9 * flat


def test_several_questions_in_one_pass_have_the_same_logits_and_their_own_share() -> None:
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
    """As one more row: what equal bits cost."""
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


def test_packed_weights_have_no_such_form() -> None:
    lm = load("weights/tiny-llama", quantize="nf4")
    with pytest.raises(InputError, match="--free-rows is for weights that are not packed"):
        time_engines(lm, SMALL, rounds=1, seed=0, with_peers=False, free_rows=True)


def test_scores_that_do_not_fit_leave_plain_out_and_say_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As with the workload longest: all others run."""
    packed = token_counts(*SMALL.prompts(288, 0)[:2])["dense"]
    monkeypatch.setattr("minise.engines.free_bytes", lambda _: 2 * packed**2)
    report = time_engines(LLAMA, SMALL, rounds=1, seed=0, with_peers=False)
    assert [row.name for row in report.rows] == [name for name in ENGINES if name != "plain"]
    assert f"plain is left out: {packed} packed tokens need a mask and scores" in report.as_text()
    monkeypatch.setattr(plot, "TRIALS", (1, 2))
    calls, left_out = plot.plan_calls(LLAMA, SMALL, 0, report)
    assert left_out == []
    assert {call.engine for call in calls} == {row.name for row in report.rows}


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
    keys = {"workload", "device", "dtype", "machine", "floor_seconds", "rows", "left_out"}
    assert set(report) == keys
    assert (report["workload"], report["left_out"]) == ("qasc", {})
    told = {"cpu", "instructions", "torch", "environment", "threads"}
    assert set(report["machine"]) == told
    for row in report["rows"]:
        assert set(row) == {"name", "seconds", "tokens", "peak_bytes", "max_difference"}


def test_text_is_a_table_with_the_floor(capsys, llama_folder: Path) -> None:
    assert main(["bench", "--model", str(llama_folder), "--rounds", "1", "--no-peers"]) == 0
    out = capsys.readouterr().out
    for name in (*ENGINES, "floor: linear layers on the tree"):
        assert f"\n{name} " in out
    assert f", torch {torch.__version__}, " in out.splitlines()[1]


class TestThePlot:
    """What is drawn, and what is said before and after: the times are made up."""

    @pytest.fixture(autouse=True)
    def small(self, monkeypatch: pytest.MonkeyPatch) -> None:
        pytest.importorskip("matplotlib")
        monkeypatch.setattr(plot, "TRIALS", (1, 2, 4))
        monkeypatch.setattr(plot, "CHOICES", (3, 5))

    def test_a_call_is_expected_to_take_time_in_proportion_to_its_tokens(self) -> None:
        """At the rate that the engines had on the workload itself."""
        calls, left_out = plot.plan_calls(LLAMA, SMALL, 0, timings(separate=3, dense=2, tree=1))
        assert left_out == []
        assert [(call.axis, call.value) for call in calls[::3]] == [
            *(("N", 1), ("N", 2), ("N", 4), ("K", 3), ("K", 5)),
        ]
        assert [call.engine for call in calls] == ["separate", "dense", "tree"] * 5
        by_place = {(call.axis, call.value, call.engine): call.expected for call in calls}
        assert by_place["K", 5, "separate"] == pytest.approx(3)  # the workload that was measured
        assert by_place["N", 4, "separate"] == pytest.approx(4)
        assert by_place["N", 1, "separate"] == pytest.approx(1)

    def test_what_would_take_too_long_is_left_out_and_named(
        self, monkeypatch: pytest.MonkeyPatch, capsys, tmp_path: Path
    ) -> None:
        as_measured = token_counts(*SMALL.prompts(99, 0)[:2])["dense"]
        monkeypatch.setattr(plot, "LONGEST", {"dense": as_measured})
        slow = timings(separate=50, dense=2, tree=1)  # over 60 seconds at N=4
        plot.plot_growth(LLAMA, SMALL, 0, 1, slow, tmp_path / "growth.png")
        said = capsys.readouterr().err.splitlines()[0]
        assert said == "minise: left out of the plot, as too long: separate at N=4, dense at N=4"
        never = timings(separate=1000, dense=1000, tree=1000)
        with pytest.raises(InputError, match="nothing to draw: each call would take over 60 sec"):
            plot.plot_growth(LLAMA, SMALL, 0, 1, never, tmp_path / "growth.png")

    @pytest.mark.parametrize(
        ("seconds", "words"), [(0.001, "about 2 seconds"), (10.0, "about 6 minutes")]
    )
    def test_it_says_first_how_long_it_takes(
        self, seconds: float, words: str, monkeypatch: pytest.MonkeyPatch, capsys, tmp_path: Path
    ) -> None:
        order = []

        def call(_: object, __: object, ___: object, engine: str, ____: object) -> None:
            order.append(engine)

        monkeypatch.setattr(plot, "branch_logits", call)
        even = timings(separate=seconds, dense=seconds, tree=seconds)
        plot.plot_growth(LLAMA, SMALL, 0, 3, even, tmp_path / "growth.png")
        assert f"minise: the plot takes {words}: 3 rounds of 15 calls\n" in capsys.readouterr().err
        assert order == ["separate", "dense", "tree"] * 15  # in turn, one call each in a round

    def test_it_draws_medians_and_their_spread(self) -> None:
        times = [3.0, 1.0, 2.0, 8.0]
        prompts = SMALL.prompts(99, 0)
        calls = [
            plot.Call(axis, value, engine, prompts, 1.0, times)
            for axis, value in [("N", 1), ("N", 2), ("K", 3), ("K", 5)]
            for engine in ENGINES
        ]
        with style():
            figure = plot.make_figure(calls, SMALL, len(times))
        for ax, name in zip(figure.axes, ("trials N", "choices K"), strict=True):
            assert ax.get_xlabel() == name
            assert [line.get_label() for line in ax.lines] == list(ENGINES)
            assert [list(line.get_ydata()) for line in ax.lines] == [[2.5, 2.5]] * len(ENGINES)
            for band in ax.collections:
                heights = band.get_paths()[0].vertices[:, 1]
                assert (min(heights), max(heights)) == (1.0, 8.0)
        caption = " ".join(figure.get_supxlabel().split())
        assert "medians of 4 rounds; bands: from the fastest to the slowest" in caption

    @pytest.mark.parametrize("ending", ["png", "svg"])
    def test_the_command_prints_what_it_wrote(
        self, ending: str, capsys, tmp_path: Path, llama_folder: Path
    ) -> None:
        path = tmp_path / f"growth.{ending}"
        given = ["bench", "--model", str(llama_folder), "--rounds", "1", "--no-peers"]
        assert main([*given, "--plot", str(path)]) == 0
        out, err = capsys.readouterr()
        assert out.endswith(f"\nwritten: {path}\n")
        assert path.stat().st_size > 1000
        assert "minise: the plot takes about" in err

    def test_with_json_nothing_else_is_printed(
        self, capsys, tmp_path: Path, llama_folder: Path
    ) -> None:
        given = ["bench", "--model", str(llama_folder), "--rounds", "1", "--no-peers", "--json"]
        assert main([*given, "--plot", str(tmp_path / "growth.png")]) == 0
        assert json.loads(capsys.readouterr().out)["rows"]

    def test_a_picture_that_cannot_be_written_is_one_line(
        self, capsys, tmp_path: Path, llama_folder: Path, monkeypatch
    ) -> None:
        def full(*_: object, **__: object) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr("matplotlib.figure.Figure.savefig", full)
        given = ["bench", "--model", str(llama_folder), "--rounds", "1", "--no-peers"]
        assert main([*given, "--plot", str(tmp_path / "growth.png")]) == 2
        last = capsys.readouterr().err.splitlines()[-1]
        assert "growth.png: cannot be written as a picture" in last


def test_the_values_of_the_plot_take_some_ten_minutes_at_three_rounds() -> None:
    """At the seconds of docs/costs.md: the default shape and workload on two cores."""
    measured = timings(WORKLOADS["qasc"], separate=3.714, dense=1.640, tree=1.089)
    calls, left_out = plot.plan_calls(LLAMA, WORKLOADS["qasc"], 0, measured)
    assert left_out == []
    assert 3 * sum(call.expected for call in calls) < 10 * 60


def test_all_published_shapes_and_the_small_one_can_be_built() -> None:
    from minise import Decoder
    from minise.loading.config_json import config_from_dict

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
        (["--plot", "."], [".: a folder", "name a file"]),
        (["--plot", "x.txt"], ["x.txt", "end it in .png or .pdf or .svg"]),
        (["--tokens-per-pass", "0"], ["--tokens-per-pass 0"]),
        (["--tokens-per-pass", "9", "--workload", "generate"], ["--tokens-per-pass", "generate"]),
        (["--free-rows", "--workload", "generate"], ["--free-rows", "generate"]),
    ],
)
def test_unusable_arguments_are_one_line(capsys, arguments, parts) -> None:
    assert main(["bench", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    for part in parts:
        assert part in captured.err


class TestGenerate:
    def test_ways_of_writing_stand_side_by_side(self, capsys) -> None:
        asked = ("bench", "--workload", "generate", "--model", "weights/tiny-llama")
        status, out, _ = run(capsys, *asked, "--rounds", 1, "--no-peers", "--json")
        assert status == 0
        found = json.loads(out)
        assert found["workload"] == "generate"
        one, tree = found["rows"]
        assert (one["name"], one["prompts"]) == ("one prompt: minise", 1)
        assert (tree["name"], tree["prompts"]) == ("all prompts: minise", 40)
        for row in (one, tree):
            assert row["new_tokens"] == 64 * row["prompts"]
            assert row["seconds"] > 0
            assert row["differing"] == 0

    def test_the_library_writes_the_same(self, capsys, monkeypatch: pytest.MonkeyPatch) -> None:
        pytest.importorskip("transformers")
        monkeypatch.setattr(generating, "NEW_TOKENS", 5)
        workload = replace(WORKLOADS["qasc"], trials=2)
        rows = time_generation(load("weights/tiny-mistral"), workload, 1, 0)
        assert [row.name.split(": ", 1)[1] for row in rows] == [
            *("minise", "library", "minise", "library, one by one", "library, padded batch")
        ]
        assert {row.differing for row in rows} == {0}
        assert "tokens/s" in generating.as_text(rows)

    def test_a_plot_is_of_the_engines(self, capsys, tmp_path: Path) -> None:
        plot = ("--plot", tmp_path / "x.png")
        assert_one_line(
            *run(capsys, "bench", "--workload", "generate", *plot), ["--plot draws the"]
        )
